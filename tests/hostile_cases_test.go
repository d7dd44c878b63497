package tests

import (
	"strings"
	"time"
)

func loginCases() []hostileCase {
	long := strings.Repeat("x", 9<<10)
	return []hostileCase{
		// What is unusual, and must work.
		{name: "a notice before authentication", script: logsIn(message('N', "SNOTICE\x00C00000\x00Mhello\x00\x00"), loggedIn())},
		{name: "byte by byte", script: hostileScript{login: func(v *visit) { v.saySingly(loggedIn()) }, hear: singly}},
		{name: "byte by byte within TLS", tls: true, script: hostileScript{login: func(v *visit) { v.saySingly(loggedIn()) }, hear: singly}},
		{name: "a parameter of 9 KB", script: logsIn(authOK, parameter("long", long), key, ready), started: "RS(9222)KZ"},
		{name: "a parameter of 60 KB", script: logsIn(authOK, parameter("long", strings.Repeat("x", 60<<10)), key, ready), started: "RS(61446)KZ"},
		{name: "no BackendKeyData", script: logsIn(authOK, ready)},
		// What the server says itself.
		{name: "an error without a code", script: logsIn(message('E', "SFATAL\x00Mno code\x00\x00")), started: "E(XX000: no code).", outcome: "server_refused"},
		{name: "an error with nothing in it", script: logsIn(message('E', "\x00")), started: "E(XX000: ).", outcome: "server_refused"},
		{name: "an error after SASL has begun", script: hostileScript{login: func(v *visit) {
			v.say(offerSCRAM)
			v.hears()
			v.say(failed("FATAL", "28P01", "no, not you"))
		}}, started: "E(28P01: no, not you).", outcome: "server_refused"},
		{name: "an error of 60 KB", script: logsIn(failed("FATAL", "53300", strings.Repeat("x", 60<<10))), started: "E(53300: " + strings.Repeat("x", 60<<10) + ").", outcome: "server_refused"},
		// Silence, and ends.
		{name: "silence from the start", script: hostileScript{accept: func(*visit) {}}, started: "E(08001: could not connect to server SERVER: no answer in time).", outcome: "unreachable"},
		{name: "silence after a SASL request", script: logsIn(offerSCRAM), started: "E(08001: could not connect to server SERVER: no answer in time).", outcome: "unreachable"},
		{name: "a login that takes for ever", script: hostileScript{login: drip}, started: "E(08001: could not connect to server SERVER: no answer in time).", outcome: "unreachable"},
		{name: "notices without end", script: hostileScript{login: notEnding}, started: "E(08001: could not connect to server SERVER: no answer in time).", outcome: "unreachable"},
		{name: "the end at once", script: accepts(func(v *visit) { v.tcp.Close() }), started: "E(08001: could not connect to server SERVER: the server closed the connection during login).", outcome: "unreachable"},
		{name: "the end amid the login", script: hostileScript{login: func(v *visit) { v.say(loggedIn()[:20]); v.tcp.Close() }}, started: "E(08001: could not connect to server SERVER: the server closed the connection amid a message).", outcome: "unreachable"},
		{name: "a reset", script: hostileScript{login: func(v *visit) { v.tcp.SetLinger(0); v.tcp.Close() }}, started: "E(08001: could not connect to server SERVER: connection reset by peer).", outcome: "unreachable"},
		// SCRAM.
		{name: "two thousand million iterations", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=2000000000" }), started: "E(08P01: SERVER: the server asks for an absurd number of SCRAM iterations (at most 1000000 are accepted)).", outcome: "protocol"},
		{name: "iterations beyond any integer", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=99999999999999999999999" }), started: "E(08P01: SERVER: the server asks for an absurd number of SCRAM iterations (at most 1000000 are accepted)).", outcome: "protocol"},
		{name: "no iterations", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=0" }), started: "E(08P01: SERVER: the server asks for an absurd number of SCRAM iterations (at most 1000000 are accepted)).", outcome: "protocol"},
		{name: "fewer iterations than none", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=-4096" }), started: "E(08P01: SERVER: the server asks for an absurd number of SCRAM iterations (at most 1000000 are accepted)).", outcome: "protocol"},
		{name: "a nonce of somebody else's", script: scram(func(string) string { return "r=x,s=eA==,i=4096" }), started: "E(08P01: SERVER: the server's SCRAM message 1 is not valid, or it does not know the password).", outcome: "protocol"},
		{name: "the nonce and nothing behind it", script: scram(func(n string) string { return "r=" + n + ",s=eA==,i=1" }, auth(12, "v=eA==")), started: "E(08P01: SERVER: the server's SCRAM message 2 is not valid, or it does not know the password).", outcome: "protocol"},
		{name: "a nonce of 50 KB", script: scram(func(n string) string { return "r=" + n + strings.Repeat("x", 50<<10) + ",s=eA==,i=1" }), started: "E(08P01: SERVER: SASL messages out of order or too long).", outcome: "protocol"},
		{name: "a wrong signature", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=1" }, auth(12, "v=eHh4eA=="), loggedIn()), started: "E(08P01: SERVER: the server's SCRAM message 2 is not valid, or it does not know the password).", outcome: "protocol"},
		{name: "success without a signature", script: scram(func(n string) string { return "r=" + n + "x,s=eA==,i=1" }, loggedIn()), started: "E(08P01: SERVER: the server ended SCRAM without proving that it knows the password).", outcome: "protocol"},
		// Frames.
		{name: "a length of 3", script: logsIn(frame('R', 3, "")), started: "E(08P01: SERVER: read login answer: message 'R' announces a length of 3 bytes).", outcome: "protocol"},
		{name: "a length of 2 GB", script: logsIn(frame('R', 1<<31-1, "xxxx")), started: "E(08P01: SERVER: read login answer: message 'R' announces a length of 2147483647 bytes, at most 65536 are expected here).", outcome: "protocol"},
		{name: "a length below 0", script: logsIn(authOK, frame('S', 1<<32-1, "xxxx")), started: "E(08P01: SERVER: read login answer: message 'S' announces a length of 4294967295 bytes, at most 65536 are expected here).", outcome: "protocol"},
		{name: "a parameter of 70 KB", script: logsIn(authOK, parameter("long", strings.Repeat("x", 70<<10)), key, ready), started: "E(08P01: SERVER: read login answer: message 'S' announces a length of 71690 bytes, at most 65536 are expected here).", outcome: "protocol"},
		{name: "a parameter without an end", script: logsIn(authOK, message('S', "TimeZone\x00UTC")), started: "E(08P01: SERVER: malformed ParameterStatus message).", outcome: "protocol"},
		{name: "an error without an end", script: logsIn(message('E', "SFATAL\x00C28P01")), started: "E(08P01: SERVER: malformed ErrorResponse).", outcome: "protocol"},
		{name: "authentication of 3 bytes", script: logsIn(message('R', "\x00\x00\x00")), started: "E(08P01: SERVER: unexpected message 'R' during authentication).", outcome: "protocol"},
		{name: "a key of 2 bytes", script: logsIn(authOK, message('K', "\x00\x00")), started: "E(08P01: SERVER: BackendKeyData of 2 bytes).", outcome: "protocol"},
		{name: "a row with a negative length", script: logsIn(authOK, message('D', "\x00\x01\xff\xff\xff\xfe")), started: "E(08P01: SERVER: unexpected message 'D' after authentication).", outcome: "protocol"},
		{name: "another protocol", script: logsIn([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), started: "E(08P01: SERVER: read login answer: message 'H' announces a length of 1414811695 bytes, at most 65536 are expected here).", outcome: "protocol"},
		{name: "a transaction from the start", script: logsIn(authOK, key, message('Z', "T")), started: "E(08P01: SERVER: the first ReadyForQuery does not say idle).", outcome: "protocol"},
		// TLS.
		{name: "bytes behind S", tls: true, script: accepts(func(v *visit) { v.say([]byte("S"), authOK, ready) }), started: "E(08006: SERVER: peer does not speak TLS here: its first bytes are not a TLS record (wrong port, a server without direct TLS, or plaintext injected behind the server's answer)).", outcome: "tls"},
		{name: "no TLS", tls: true, script: accepts(func(v *visit) { v.say([]byte("N")) }), started: "E(08006: SERVER: server does not offer TLS on this port: set ssl = on there, or choose another tls.mode).", outcome: "tls"},
		{name: "an error in the place of S", tls: true, script: accepts(func(v *visit) { v.say(failed("FATAL", "53300", "full")) }), started: "E(08006: SERVER: server answered the request for TLS with an error message (unauthenticated, so not shown): it may be out of connections or older than PostgreSQL 8.0; see the server's own log).", outcome: "tls"},
		{name: "HTTP in the place of S", tls: true, script: accepts(func(v *visit) { v.say([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) }), started: "E(08006: SERVER: peer does not answer the request for TLS as a PostgreSQL server does: check host and port).", outcome: "tls"},
		{name: "silence after S", tls: true, script: accepts(func(v *visit) { v.say([]byte("S")) }), started: "E(08001: could not connect to server SERVER: no answer in time).", outcome: "unreachable"},
		{name: "the end after S", tls: true, script: accepts(func(v *visit) { v.say([]byte("S")); v.tcp.Close() }), started: "E(08001: could not connect to server SERVER: TLS handshake: server closed the connection amid it; see the server's log).", outcome: "unreachable"},
		{name: "an alert in the place of a hello", tls: true, script: accepts(func(v *visit) { v.say([]byte("S\x15\x03\x03\x00\x02\x02\x28")) }), started: "E(08006: SERVER: the server found no common parameters, or wants something that we did not send: see the server's log, and its ssl_ciphers and ssl_ecdh_curve (TLS alert 40, handshake_failure)).", outcome: "tls"},
		{name: "an alert amid the login", tls: true, script: hostileScript{login: func(v *visit) { v.say(authOK); v.alert(2, 80) }}, started: "E(08006: SERVER: the server had an internal error; see the server's log (TLS alert 80, internal_error)).", outcome: "tls"},
		{name: "the end amid the login within TLS", tls: true, script: hostileScript{login: func(v *visit) { v.say(authOK); v.tcp.Close() }}, started: "E(08001: could not connect to server SERVER: the server closed the connection amid a message: peer closed the connection without ending TLS (it crashed, or the path cut it)).", outcome: "unreachable"},
	}
}

// singly answers byte by byte.
func singly(v *visit, typ byte, body []byte) bool {
	if typ != 'Q' {
		return false
	}
	v.saySingly(answerTo(strings.TrimSuffix(string(body), "\x00")))
	return true
}

// drip sends the login a byte at a time, each before one would give up waiting
// for it.
func drip(v *visit) {
	for _, b := range loggedIn() {
		if _, err := v.Write([]byte{b}); err != nil {
			return
		}
		<-time.After(300 * time.Millisecond)
	}
}

func notEnding(v *visit) {
	notices := []byte(strings.Repeat(string(message('N', "SNOTICE\x00C00000\x00Mhello\x00\x00")), 1000))
	for {
		if _, err := v.Write(notices); err != nil {
			return
		}
	}
}

func sessionCases() []hostileCase {
	good := answerTo("hello")
	begun, half := good[:len(good)-20], good[:len(good)-23] // between two messages, and amid one
	tokyo := []string{"TimeZone", "Asia/Tokyo"}
	return []hostileCase{
		// What is unusual, and reaches the function as it is.
		{name: "a parameter of 9 KB", script: says(parameter("long", strings.Repeat("x", 9<<10)), good), answered: "S(9222)TD(hello)CZ"},
		{name: "an error without a code", script: says(message('E', "SERROR\x00Mno code\x00\x00"), ready), answered: "E(XX000: no code)Z"},
		{name: "a column of negative length", script: says(message('D', "\x00\x01\xff\xff\xff\xfeabc"), ready), answered: "D(abc)Z"},
		{name: "fewer columns than none", script: says(message('T', "\xff\xff"), ready), answered: "TZ"},
		{name: "an error, and the end", script: answers(func(v *visit) { v.say(failed("FATAL", "57P01", "good night")); v.tcp.Close() }), answered: "E(57P01: good night).", outcome: "server_closed"},
		{name: "the end between two messages", script: answers(func(v *visit) { v.tcp.Close() }), answered: ".", outcome: "server_closed"},
		{name: "the end amid a message", script: answers(func(v *visit) { v.say(half); v.tcp.Close() }), answered: "T…", outcome: "server_closed"},
		{name: "a reset amid a message", script: answers(func(v *visit) { v.say(half); v.tcp.SetLinger(0); v.tcp.Close() }), answered: "T…", outcome: "server_closed"},
		// What is not the protocol.
		{name: "a second ReadyForQuery", script: says(good, ready), answered: "TD(hello)CZ", then: "E(08P01: ReadyForQuery that nobody asked for).", outcome: "protocol"},
		{name: "a ReadyForQuery amid an answer", script: says(ready, good), answered: "Z", then: "TD(hello)CE(08P01: ReadyForQuery that nobody asked for).", outcome: "protocol"},
		{name: "a ReadyForQuery of no status", script: says(message('Z', "X")), answered: "E(08P01: ReadyForQuery with transaction status 88).", outcome: "protocol"},
		{name: "a ReadyForQuery of 2 bytes", script: says(message('Z', "II")), answered: "E(08P01: server message 'Z' announces a length of 6 bytes).", outcome: "protocol"},
		{name: "a length of 3", script: says(frame('D', 3, "")), answered: "E(08P01: server message 'D' announces a length of 3 bytes).", outcome: "protocol"},
		{name: "a length of 0 amid an answer", script: says(begun, frame('D', 0, "")), answered: "TD(hello)E(08P01: server message 'D' announces a length of 0 bytes).", outcome: "protocol"},
		{name: "a length below 0", script: says(frame('D', 1<<32-1, "xx")), answered: "E(08P01: server message 'D' announces a length of -1 bytes).", outcome: "protocol"},
		{name: "a parameter of 70 KB", script: says(parameter("long", strings.Repeat("x", 70<<10)), good), answered: "E(08P01: server message 'S' announces a length of 71690 bytes).", outcome: "protocol"},
		{name: "a parameter of 2 GB", script: says(frame('S', 1<<31-1, "xx")), answered: "E(08P01: server message 'S' announces a length of 2147483647 bytes).", outcome: "protocol"},
		{name: "a parameter without an end", script: says(message('S', "TimeZone\x00UTC"), good), answered: "E(08P01: malformed ParameterStatus message).", outcome: "protocol"},
		// TLS.
		{name: "an alert", tls: true, script: answers(func(v *visit) { v.alert(2, 80) }), answered: "E(08006: the server had an internal error; see the server's log (TLS alert 80, internal_error)).", outcome: "tls"},
		{name: "an alert between two messages", tls: true, script: answers(func(v *visit) { v.say(begun); v.alert(2, 80) }), answered: "TD(hello)E(08006: the server had an internal error; see the server's log (TLS alert 80, internal_error)).", outcome: "tls"},
		{name: "an alert amid a message", tls: true, script: answers(func(v *visit) { v.say(half); v.alert(2, 80) }), answered: "T…", outcome: "tls"},
		{name: "an alert that is not encrypted", tls: true, script: answers(func(v *visit) { v.tcp.Write([]byte("\x15\x03\x03\x00\x02\x02\x28")) }), answered: "E(08006: peer broke the TLS protocol: unprotected record of type 21 after the handshake (unexpected_message)).", outcome: "tls"},
		{name: "a record that is not whole", tls: true, script: answers(func(v *visit) { v.tcp.Write([]byte("\x17\x03\x03\x40\x00abc")); v.tcp.Close() }), answered: ".", outcome: "server_closed"},
		{name: "a record of 64 KB", tls: true, script: answers(func(v *visit) { v.tcp.Write([]byte("\x17\x03\x03\xff\xffabc")) }), answered: "E(08006: peer broke the TLS protocol: record of 65535 bytes is longer than 16640 (record_overflow)).", outcome: "tls"},
		{name: "plaintext", tls: true, script: answers(func(v *visit) { v.tcp.Write(good) }), answered: "E(08006: peer broke the TLS protocol: unprotected record of type 84 after the handshake (unexpected_message)).", outcome: "tls"},
		{name: "TLS's own end", tls: true, script: answers(func(v *visit) { v.alert(1, 0) }), answered: ".", outcome: "server_closed"},
		{name: "the end without TLS's", tls: true, script: answers(func(v *visit) { v.tcp.Close() }), answered: ".", outcome: "server_closed"},
		{name: "the end without TLS's amid a message", tls: true, script: answers(func(v *visit) { v.say(half); v.tcp.Close() }), answered: "T…", outcome: "server_closed"},
		// Start-up parameters, which are an exchange of the daemon's own.
		{name: "parameters", startup: tokyo},
		{name: "parameters and a row of negative length", startup: tokyo, started: "RE(08P01: SERVER: malformed DataRow, or too many of them).", outcome: "protocol", script: toParameters(message('D', "\x00\x01\xff\xff\xff\xfe"), ready)},
		{name: "parameters and no rows", startup: tokyo, started: "RE(08P01: the server did not answer what was asked).", outcome: "protocol", script: toParameters(ready)},
		{name: "parameters and an error without a code", startup: tokyo, started: "RE(XX000: no).", outcome: "server_refused", script: toParameters(message('E', "SERROR\x00Mno\x00\x00"), ready)},
		{name: "parameters and 2 GB", startup: tokyo, started: "RE(08P01: SERVER: message 'D' announces a length of 2147483647 bytes, at most 1048576 are expected here).", outcome: "protocol", script: toParameters(frame('D', 1<<31-1, "xx"))},
		{name: "parameters and a COPY", startup: tokyo, started: "RE(08P01: SERVER: the server began a COPY that nobody asked for).", outcome: "protocol", script: toParameters(message('G', "\x00\x00\x00"))},
		{name: "parameters and the end", startup: tokyo, started: "RE(08001: could not connect to server SERVER: the server closed the connection).", outcome: "unreachable", script: hostileScript{hear: func(v *visit, typ byte, _ []byte) bool {
			if typ == 'S' {
				v.tcp.Close()
			}
			return true
		}}},
		// The clean-up, when the function is gone.
		{name: "a clean-up that is good", pool: "reset: discard"},
		{name: "a clean-up that is refused", pool: "reset: discard", script: toCleanUp(failed("ERROR", "42501", "no"), ready)},
		{name: "a clean-up of something else", pool: "reset: discard", script: toCleanUp(message('C', "DISCARD TEMP\x00"), ready)},
		{name: "a clean-up that goes on", pool: "reset: discard", script: toCleanUp(message('C', "DISCARD ALL\x00"), ready, message('C', "RESET\x00"), message('C', "SELECT 1\x00"), ready, good)},
		{name: "a clean-up that leaves a transaction", pool: "reset: discard", script: toCleanUp(message('C', "DISCARD ALL\x00"), message('Z', "T"))},
		{name: "a clean-up of 2 GB", pool: "reset: discard", script: toCleanUp(frame('C', 1<<31-1, "xx"))},
		{name: "a clean-up and the end", pool: "reset: discard", script: hostileScript{hear: func(v *visit, typ byte, body []byte) bool {
			if strings.HasPrefix(string(body), "DISCARD") {
				v.tcp.Close()
			}
			return false
		}}},
		{name: "a clean-up that never ends", pool: "reset: discard", script: toCleanUp()},
		{name: "a clean-up that is answered twice", pool: "reset: discard", script: hostileScript{hear: func(v *visit, typ byte, body []byte) bool {
			if strings.HasPrefix(string(body), "RESET ROLE") {
				v.say(answerTo(string(body[:len(body)-1])))
			}
			return false
		}}},
	}
}

// toParameters is a server that answers the daemon's batch of parameters with
// this.
func toParameters(parts ...[]byte) hostileScript {
	return hostileScript{hear: func(v *visit, typ byte, _ []byte) bool {
		if typ == 'S' {
			v.say(parts...)
		}
		return typ != 'Q'
	}}
}

// toCleanUp is a server that answers the daemon's DISCARD ALL with this, and
// nothing behind it.
func toCleanUp(parts ...[]byte) hostileScript {
	return hostileScript{hear: func(v *visit, typ byte, body []byte) bool {
		if strings.HasPrefix(string(body), "DISCARD ALL") {
			v.say(parts...)
		}
		return strings.HasPrefix(string(body), "DISCARD ALL") || strings.HasPrefix(string(body), "RESET ROLE")
	}}
}
