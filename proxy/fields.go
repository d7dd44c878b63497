package proxy

// The names of log fields. They are spelt here and nowhere else.
const (
	fieldRoute      = "route"
	fieldLease      = "lease"
	fieldUID        = "uid"
	fieldPeerPID    = "pid"
	fieldServer     = "server"
	fieldBackendPID = "backend_pid"
	fieldReason     = "reason"
	fieldSocket     = "socket"
	fieldIdentity   = "identity"
	fieldAddress    = "address"
	fieldWait       = "wait"
	fieldRetryIn    = "retry_in"
)
