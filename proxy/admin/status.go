package admin

import "time"

// Status is what `pghandoff status` shows. It holds no secrets.
type Status struct {
	Version    string     `json:"version"`
	PID        int        `json:"pid"`
	Started    time.Time  `json:"started"`
	RunDir     string     `json:"run_dir"`
	Address    string     `json:"address,omitempty"` // of the TCP listener
	Draining   bool       `json:"draining,omitempty"`
	KernelTLS  string     `json:"kernel_tls"` // which record protection the kernel could take over
	Routes     []Route    `json:"routes"`
	Leases     []Lease    `json:"leases"`
	Identities []Identity `json:"identities"`
}

// Route is one route and its pool.
type Route struct {
	Name     string   `json:"name"`
	Servers  []string `json:"servers"`
	User     string   `json:"user"`
	TLSMode  string   `json:"tls_mode"`
	Idle     int      `json:"idle"`
	Leased   int      `json:"leased"`
	Dialling int      `json:"dialling"`
	Waiting  int      `json:"waiting"`
	MinIdle  int      `json:"min_idle"`
	Max      int      `json:"max"`
	// HelloRetryRequests of servers since the route's pool was made, each of which
	// costs a dial a round trip, and the group of the last key exchange.
	HelloRetries uint64 `json:"hello_retry_requests"`
	KeyExchange  string `json:"key_exchange,omitempty"`
	LastError    string `json:"last_error,omitempty"` // of the last failed dial, until one succeeds
}

// Lease is one lease that is held.
type Lease struct {
	ID         string    `json:"id"`
	Route      string    `json:"route"`
	Way        string    `json:"way"`
	UID        uint32    `json:"uid"` // 65534: of a function elsewhere
	Address    string    `json:"address,omitempty"`
	PID        int32     `json:"pid"`
	BackendPID uint32    `json:"backend_pid"`
	Since      time.Time `json:"since"`
}

// Identity is one identity and how long it lasts.
type Identity struct {
	Name       string     `json:"name"`
	Generation uint64     `json:"generation"`
	Subject    string     `json:"subject,omitempty"`
	Serial     string     `json:"serial,omitempty"`
	NotAfter   *time.Time `json:"not_after,omitempty"`
	LastError  string     `json:"last_error,omitempty"` // why it could not be renewed; empty: the last attempt went well
	Since      *time.Time `json:"since,omitempty"`      // of the first error in a row
	NextTry    *time.Time `json:"next_try,omitempty"`
}
