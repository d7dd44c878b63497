package pgwire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pghandoff/pgwire"
)

func startup(version uint32, rest string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, version), rest...)
}

func TestParseStartup(t *testing.T) {
	s, err := pgwire.ParseStartup(startup(pgwire.VersionLatest, "user\x00app\x00database\x00orders\x00_pq_.x\x001\x00user\x00last\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	user, _ := s.Get("user")
	if s.Kind != pgwire.StartupMessage || user != "last" || len(s.Options) != 1 || s.Options[0] != "_pq_.x" {
		t.Errorf("got %+v", s)
	}
	if _, ok := s.Get("_pq_.x"); ok {
		t.Error("a protocol option became a parameter")
	}
	for code, kind := range map[uint32]pgwire.StartupKind{80877103: pgwire.SSLRequest, 80877104: pgwire.GSSENCRequest} {
		if s, err := pgwire.ParseStartup(startup(code, "")); err != nil || s.Kind != kind {
			t.Errorf("%d: %v, %v", code, s.Kind, err)
		}
	}
	s, err = pgwire.ParseStartup(pgwire.AppendCancelRequest(nil, 42, []byte("keys"))[4:])
	if err != nil || s.Kind != pgwire.CancelRequest || s.PID != 42 || string(s.Secret) != "keys" {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestParseStartupRefuses(t *testing.T) {
	for name, p := range map[string][]byte{
		"nothing":              nil,
		"three bytes":          {0, 3, 0},
		"version 2":            startup(2<<16, "\x00"),
		"version 4":            startup(4<<16, "\x00"),
		"no terminator":        startup(pgwire.Version30, "user\x00app\x00"),
		"no value":             startup(pgwire.Version30, "user\x00"),
		"bytes behind":         startup(pgwire.Version30, "user\x00app\x00\x00x"),
		"SSLRequest with more": startup(80877103, "x"),
		"cancel without key":   startup(80877102, "pid."),
		"cancel with long key": startup(80877102, "pid."+string(make([]byte, 257))),
	} {
		if s, err := pgwire.ParseStartup(p); !errors.Is(err, pgwire.ErrProtocol) {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
	if _, err := pgwire.ParseStartup(startup(4<<16, "")); !errors.Is(err, pgwire.ErrVersion) {
		t.Errorf("protocol 4.0: %v", err)
	}
	for n, ok := range map[uint32]bool{0: false, 7: false, 8: true, 10004: true, 10005: false, 1 << 31: false} {
		var field [4]byte
		binary.BigEndian.PutUint32(field[:], n)
		if got, err := pgwire.StartupLength(field); (err == nil) != ok || ok && got != int(n) {
			t.Errorf("length %d: got %d, %v", n, got, err)
		}
	}
}

func TestAnswersAreReadBackAsFrames(t *testing.T) {
	var p []byte
	p = pgwire.AppendAuthenticationOk(p)
	p = pgwire.AppendNegotiateProtocolVersion(p, pgwire.VersionLatest, []string{"_pq_.x"})
	p = pgwire.AppendParameterStatus(p, pgwire.Parameter{Name: "a", Value: "b\x00c"})
	p = pgwire.AppendBackendKeyData(p, 1, 1<<31)
	p = pgwire.AppendNotice(p, pgwire.Notice{Severity: "NOTICE", Code: "00000", Message: "wait"})
	p = pgwire.AppendError(p, pgwire.Notice{Severity: "FATAL", Code: "3D000", Message: "no such route", Hint: "ask"})
	p = pgwire.AppendReadyForQuery(p, 'I')
	r := pgwire.NewFrameReader(bytes.NewReader(p), 0)
	for _, want := range "RvSKNEZ" {
		typ, body, err := r.Next()
		if err != nil || typ != byte(want) {
			t.Fatalf("got %q, %v; want %q", typ, err, want)
		}
		if typ == 'E' {
			if e, err := pgwire.ParseError(body); err != nil || e.Notice != (pgwire.Notice{Severity: "FATAL", Code: "3D000", Message: "no such route", Hint: "ask"}) {
				t.Errorf("got %+v, %v", e, err)
			}
		}
	}
}

func FuzzParseStartup(f *testing.F) {
	f.Add(startup(pgwire.Version30, "user\x00app\x00\x00"))
	f.Add(pgwire.AppendCancelRequest(nil, 42, []byte("keys"))[4:])
	f.Fuzz(func(t *testing.T, p []byte) {
		s, err := pgwire.ParseStartup(p)
		if err == nil && s.Kind == pgwire.CancelRequest && !bytes.Equal(pgwire.AppendCancelRequest(nil, s.PID, s.Secret)[4:], p) {
			t.Error("a cancel request is not what it was read from")
		}
	})
}
