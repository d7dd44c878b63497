package tests

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pghandoff/tests/testpg"
	"pghandoff/tlsstate"
)

// opensslFar is a running `openssl s_server` or `s_client`. What it reads from its standard input it sends, but for the
// commands k and K, which change its key; what it receives it writes to its standard output.
type opensslFar struct {
	stdin  *os.File // packets, so that each write is one read there: a command has to be one
	stdout *bufio.Reader
	rng    *rand.Rand
	keys   bool // it can change its key
}

// openSSLMarker is the first that is sent to it: what stands on the standard output in front of it is of its own.
var openSSLMarker = []byte("\nfrom here on data\n")

// startOpenSSL starts it with records of a random size.
func startOpenSSL(r diffRun, args ...string) *opensslFar {
	r.Helper()
	path := testpg.Require(r, "openssl", "openssl")
	version, ciphers := "-tls1_3", []string{"-ciphersuites", tls.CipherSuiteName(r.suite)}
	if r.version() == tls.VersionTLS12 {
		version, ciphers = "-tls1_2", []string{"-cipher", openSSLName(r.suite)}
	}
	args = append(append(args, version, "-alpn", "postgresql", "-max_send_frag", fmt.Sprint(512+r.other.IntN(16384-512+1))), ciphers...)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.Fatal(err)
	}
	stdin, theirs := os.NewFile(uintptr(fds[0]), "to openssl"), os.NewFile(uintptr(fds[1]), "openssl's input")
	ctx, cancel := context.WithCancel(r.patience())
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = theirs
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	theirs.Close()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		cancel()
		cmd.Wait()
		stdin.Close()
		if r.Failed() {
			r.Logf("openssl: %s", &stderr)
		}
	})
	return &opensslFar{stdin, bufio.NewReader(stdout), r.other, r.version() == tls.VersionTLS13}
}

// openSSLName is what OpenSSL calls a suite of TLS 1.2.
func openSSLName(suite uint16) string {
	name := strings.NewReplacer("TLS_", "", "_WITH_", "-", "AES_", "AES", "_", "-").Replace(tls.CipherSuiteName(suite))
	return strings.Replace(name, "POLY1305-SHA256", "POLY1305", 1)
}

func (f *opensslFar) talk(p []byte, want int) ([]byte, int, error) {
	commands, wrote := 0, make(chan error, 1)
	go func() { // ends with its data, or with the process; waited for below
		for len(p) > 0 {
			piece := p[:min(len(p), size(f.rng), 8<<10)] // it reads no more at once
			p = p[len(piece):]
			if _, err := f.stdin.Write(piece); err != nil {
				wrote <- err
				return
			}
			if f.keys && f.rng.IntN(6) == 0 {
				commands++
				if _, err := f.stdin.WriteString([]string{"k\n", "K\n"}[f.rng.IntN(2)]); err != nil {
					wrote <- err
					return
				}
			}
		}
		wrote <- nil
	}()
	sum := sha256.New()
	err := skipTo(f.stdout, openSSLMarker)
	if err == nil {
		_, err = io.CopyN(sum, notices{f.stdout}, int64(want))
	}
	if err != nil {
		return nil, 0, fmt.Errorf("output of openssl: %w", err)
	}
	if err := <-wrote; err != nil {
		return nil, 0, fmt.Errorf("input of openssl: %w", err)
	}
	return sum.Sum(nil), commands, nil
}

// notices takes out what openssl says amid the data, such as "SSL_do_handshake -> 1": lines whose first letter is none of
// the data's.
type notices struct{ *bufio.Reader }

func (n notices) Read(p []byte) (int, error) {
	for {
		got, err := n.Peek(1)
		if err != nil {
			return 0, err
		}
		if !strings.Contains(diffAlphabet, string(got)) {
			if _, err := n.ReadString('\n'); err != nil {
				return 0, err
			}
			continue
		}
		got, _ = n.Peek(min(len(p), n.Buffered()))
		end := bytes.IndexFunc(got, func(r rune) bool { return !strings.ContainsRune(diffAlphabet, r) })
		if end < 0 {
			end = len(got)
		}
		return n.Reader.Read(p[:end])
	}
}

// dialOpenSSL is a Client whose server is OpenSSL.
func dialOpenSSL(r diffRun) (*tlsstate.Stream, far) {
	r.Helper()
	id, dir := r.identity(), r.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(r, cert, string(id.certPEM))
	write(r, key, string(id.keyPEM))
	other := startOpenSSL(r, "s_server", "-accept", "127.0.0.1:0", "-cert", cert, "-key", key)
	address, found := "", false
	for !found {
		line, err := other.stdout.ReadString('\n')
		if err != nil {
			r.Fatal(err)
		}
		address, found = strings.CutPrefix(strings.TrimSpace(line), "ACCEPT ")
	}
	nc, err := net.Dial("tcp", address)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { nc.Close() })
	s, err := tlsstate.Client(r.patience(), nc, tlsstate.Config{Host: "localhost", Roots: id.roots, Negotiation: tlsstate.Direct})
	return marked(r, s, err), other
}

// acceptOpenSSL is a Server whose client is OpenSSL.
func acceptOpenSSL(r diffRun) (*tlsstate.Stream, far) {
	r.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer l.Close()
	roots := filepath.Join(r.TempDir(), "roots.pem")
	write(r, roots, string(r.identity().certPEM))
	other := startOpenSSL(r, "s_client", "-connect", l.Addr().String(), "-CAfile", roots, "-verify_return_error", "-verify_hostname", "localhost")
	nc, err := l.Accept()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { nc.Close() })
	s, err := r.serverOn(nc)
	return marked(r, s, err), other
}

func marked(r diffRun, s *tlsstate.Stream, err error) *tlsstate.Stream {
	r.Helper()
	if err == nil {
		_, err = s.Write(bytes.Clone(openSSLMarker))
	}
	if err != nil {
		r.Fatal(err)
	}
	return s
}
