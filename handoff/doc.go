// Package handoff passes descriptors between processes: the protocol by which a function asks the daemon for a
// connection to its database and receives it as an open descriptor, the client library for it, the launcher behind
// "pghandoff exec", and the daemon's end of one such conversation as plain data.
//
// # Protocol, version 1
//
// A stream socket in the Unix domain. One JSON object a line each way:
//
//	→ {"v":1,"id":"a1","op":"acquire","database":"orders","user":"app","state":"ready","transport":"any","wait_ms":5000,…}
//	← {"v":1,"id":"a1","ok":true,"lease":"0190…","transport":"bridge","state":"ready","tx":"I","pid":4211,"secret":…,…}
//	→ {"v":1,"op":"release","lease":"0190…"}
//	← {"v":1,"ok":true}
//	← {"v":1,"ok":false,"sqlstate":"28000","message":"…","hint":"…","retry":false}
//
// A granting reply carries exactly one descriptor, on its first byte. Replies come in the order of requests.
//
// # What it refuses
//
// A line that is not exactly one JSON object with the known version and operation, in valid UTF-8, without duplicate
// names and NUL characters, is answered with SQLSTATE 08P01, and the conversation ends. A client that receives more or
// fewer descriptors than a reply announces closes all of them. The package does not decide who may have what: that is
// the daemon's business, and so are its limits and slowing down those who guess secrets.
//
// # Invariants
//
//   - A descriptor has one owner at any time, and every path that fails closes it.
//   - A [Conversation] does no input and output, holds at most what was fed, and nothing while it is idle.
//   - The client starts no goroutine and sets no timer of its own: a frozen function freezes.
//   - Received descriptors are close-on-exec.
//
// # Files
//
// The codec (json.go, json_text.go, json_write.go, call.go, reply.go), lines.go and conversation.go know only bytes.
// transfer_linux.go does the clients' input and output, peer_linux.go what the daemon asks of its descriptors.
//
// # Shortest use, in a function
//
//	lease, err := handoff.Acquire(ctx, handoff.Request{Database: "orders", State: handoff.Ready})
//	if err != nil { … }
//	defer lease.Close()
//	conn := lease.Conn() // speaks PostgreSQL's protocol, no TLS and no password; or see package pgxhandoff
package handoff
