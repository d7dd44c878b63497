package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Daemon is what the control socket controls.
type Daemon interface {
	Status() *Status
	Reload() error
	Drain()
	RotateIdentity(name string) error
	RevokeIdentity(name string) error
}

type peerKey struct{}

// Serve answers on l until ctx is done; it owns l.
func Serve(ctx context.Context, l *net.UnixListener, d Daemon) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(d.Status())
	})
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, _ *http.Request) {
		if err := d.Reload(); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		}
	})
	mux.HandleFunc("POST /drain", func(http.ResponseWriter, *http.Request) { d.Drain() })
	for path, do := range map[string]func(string) error{"POST /identity/rotate": d.RotateIdentity, "POST /identity/revoke": d.RevokeIdentity} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if err := do(r.URL.Query().Get("name")); err != nil {
				http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			}
		})
	}
	server := &http.Server{
		Handler:           ownOnly(mux),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		MaxHeaderBytes: 8 << 10, // 8 KiB
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, checkPeer(c))
		},
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil
}

func ownOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err, _ := r.Context().Value(peerKey{}).(error); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
