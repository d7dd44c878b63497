package certs

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const selfLifetime = 24 * time.Hour

// SelfSource is the identity source "self": a development CA that lives in a folder and issues the client certificate
// itself. The CA, and the certificate while enough of its life is left, survive restarts; a Load in the last third of
// the certificate's life issues the next one. Several processes may use one folder.
type SelfSource struct {
	CommonName string        // of the client certificate: the database role
	Dir        string        // created with mode 0700; holds ca.crt, ca.key, client.crt, client.key, lock
	Lifetime   time.Duration // of a client certificate; zero means 24 h
}

// Load returns the client certificate and, as trust anchor, the CA.
func (s SelfSource) Load(ctx context.Context, now time.Time) (*Material, error) {
	if s.CommonName == "" {
		return nil, refuse(Incomplete, "", "the development identity has no common name: give it the database role's name")
	}
	unlock, err := lockDir(s.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ca, err := openDevCALocked(s.Dir, now)
	if err != nil {
		return nil, err
	}
	files := FileSource{Cert: filepath.Join(s.Dir, "client.crt"), Key: filepath.Join(s.Dir, "client.key"),
		Roots: filepath.Join(s.Dir, "ca.crt")}
	if m, err := files.Load(ctx, now); err == nil && s.keeps(m, ca, now) {
		return m, nil
	}
	issued, err := ca.issueClientAt(s.CommonName, now, s.lifetime())
	if err != nil {
		return nil, err
	}
	if err := writePair(s.Dir, "client", issued.ChainPEM, issued.KeyPEM); err != nil {
		return nil, err
	}
	return files.Load(ctx, now)
}

func (s SelfSource) lifetime() time.Duration {
	if s.Lifetime > 0 {
		return s.Lifetime
	}
	return selfLifetime
}

// keeps tells whether the stored certificate is the one that would be issued and has a third of its life left.
func (s SelfSource) keeps(m *Material, ca *DevCA, now time.Time) bool {
	leaf := m.chain[0]
	left := m.notAfter.Sub(now)
	return leaf.Subject.CommonName == s.CommonName && leaf.CheckSignatureFrom(ca.certificate) == nil &&
		left >= s.lifetime()/3 && left <= s.lifetime()
}

// OpenDevCA returns the authority kept in dir, or makes one there. The folder gets mode 0700 and the key 0600.
func OpenDevCA(dir string, now time.Time) (*DevCA, error) {
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return openDevCALocked(dir, now)
}

func openDevCALocked(dir string, now time.Time) (*DevCA, error) {
	certPath, keyPath := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	certData, certErr := readFile(certPath, certPath, maxFileSize, false)
	keyData, keyErr := readFile(keyPath, keyPath, maxFileSize, true)
	if errors.Is(certErr, fs.ErrNotExist) { // written last, so without it the CA has never been used
		return createDevCA(dir, now)
	}
	if err := errors.Join(certErr, keyErr); err != nil {
		return nil, err
	}
	certificates, err := parseCertificates(certPath, certData)
	if err != nil {
		return nil, err
	}
	signer, err := parseKey(keyPath, keyData)
	if err != nil {
		return nil, err
	}
	key, ok := signer.(*ecdsa.PrivateKey)
	if !ok || len(certificates) != 1 || !owns(key, certificates[0]) {
		return nil, refuse(Mismatched, certPath, "%s and %s are not a development CA of this program: remove the folder %s "+
			"to start anew", certPath, keyPath, dir)
	}
	if err := checkValidity(certPath, "development CA", certificates[0], now); err != nil {
		return nil, err
	}
	return &DevCA{certificate: certificates[0], key: key}, nil
}

func createDevCA(dir string, now time.Time) (*DevCA, error) {
	ca, err := NewDevCA(now)
	if err != nil {
		return nil, err
	}
	text, err := keyPEM(ca.key)
	if err != nil {
		return nil, err
	}
	if err := writePair(dir, "ca", ca.RootsPEM(), text); err != nil {
		return nil, err
	}
	return ca, nil
}

// lockDir makes the folder if it is missing and holds its lock until the returned function is called. The lock falls
// with the process.
func lockDir(dir string) (unlock func(), err error) {
	if dir == "" {
		return nil, refuse(Incomplete, "", "the development CA has no folder: name one to keep its key in")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder of development CA: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock folder of development CA: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock folder of development CA: %w", err)
		}
	}
}

// writePair writes name.key and then name.crt, each whole or not at all. What a crash in between leaves is replaced by
// the next Load.
func writePair(dir, name string, certificate, key []byte) error {
	if err := writeWhole(filepath.Join(dir, name+".key"), key, 0o600); err != nil {
		return err
	}
	return writeWhole(filepath.Join(dir, name+".crt"), certificate, 0o644)
}

func writeWhole(path string, data []byte, mode fs.FileMode) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
