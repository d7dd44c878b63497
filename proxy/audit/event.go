package audit

import "time"

// Kind is the name of an event; the names are interface.
type Kind string

// The events.
const (
	DaemonStarted   Kind = "daemon.started"
	DaemonStopped   Kind = "daemon.stopped"
	DaemonReloaded  Kind = "daemon.reloaded"
	LeaseGranted    Kind = "lease.granted"
	LeaseDenied     Kind = "lease.denied"
	LeaseReleased   Kind = "lease.released"
	LeaseRevoked    Kind = "lease.revoked"
	LeaseTimedOut   Kind = "lease.timed_out"
	UpstreamOpened  Kind = "upstream.opened"
	UpstreamClosed  Kind = "upstream.closed"
	UpstreamFailed  Kind = "upstream.failed"
	CancelForwarded Kind = "cancel.forwarded"
	CancelDropped   Kind = "cancel.dropped"
	IdentityLoaded  Kind = "identity.loaded"
	IdentityRotated Kind = "identity.rotated"
	IdentityRefused Kind = "identity.rejected"
	IdentityRevoked Kind = "identity.revoked"
	IdentityFailing Kind = "identity.failing"
	IdentityExpired Kind = "identity.expired"
)

// Event is one line of the trail. Empty fields are left out.
type Event struct {
	Time         time.Time `json:"time"`
	Seq          uint64    `json:"seq"`
	Event        Kind      `json:"event"`
	Missed       uint64    `json:"missed,omitempty"` // events lost just before this one
	Lease        string    `json:"lease,omitempty"`
	Route        string    `json:"route,omitempty"`
	User         string    `json:"user,omitempty"` // as the function named it
	Application  string    `json:"application_name,omitempty"`
	Way          string    `json:"way,omitempty"` // wire or handoff
	Peer         *Peer     `json:"peer,omitempty"`
	Upstream     *Upstream `json:"upstream,omitempty"`
	Identity     string    `json:"identity,omitempty"`
	Generation   uint64    `json:"generation,omitempty"` // of the identity
	Transport    string    `json:"transport,omitempty"`
	Pooling      string    `json:"pooling,omitempty"`
	Outcome      string    `json:"outcome,omitempty"`
	SQLState     string    `json:"sqlstate,omitempty"`
	Message      string    `json:"message,omitempty"`
	BytesIn      uint64    `json:"bytes_in,omitempty"`  // from the function
	BytesOut     uint64    `json:"bytes_out,omitempty"` // to the function
	Transactions uint64    `json:"transactions,omitempty"`
	WaitMicros   int64     `json:"wait_us,omitempty"`
	DurationMS   int64     `json:"duration_ms,omitempty"`
}

// Peer is the process that asked, as the kernel names it. The events of a lease
// may share one, which nobody changes once it was recorded.
type Peer struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	PID int32  `json:"pid"` // 0: not in a pid namespace that the daemon sees
	Exe string `json:"exe,omitempty"`
	// Of a function at the TCP listener, whose ids are 65534: nobody's.
	Address     string `json:"address,omitempty"`
	CertSubject string `json:"cert_subject,omitempty"`
	CertSerial  string `json:"cert_serial,omitempty"` // hexadecimal
	LoginUser   string `json:"login_user,omitempty"`  // whose password it knew
}

// Upstream is the backend on the other side.
type Upstream struct {
	Address            string     `json:"address"`
	BackendPID         uint32     `json:"backend_pid,omitempty"`
	TLSVersion         string     `json:"tls_version,omitempty"`
	Cipher             string     `json:"cipher,omitempty"`
	ServerCertSHA256   string     `json:"server_cert_sha256,omitempty"`
	ServerCertNotAfter *time.Time `json:"server_cert_not_after,omitempty"`
	ClientCertSerial   string     `json:"client_cert_serial,omitempty"`
	Generation         uint64     `json:"generation,omitempty"`
	ChannelBinding     bool       `json:"channel_binding,omitempty"`
}
