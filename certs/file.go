package certs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// maxFileSize bounds what is read of one file; the largest public bundles have about 300 KiB.
const maxFileSize = 4 << 20 // 4 MiB

// FileSource reads PEM files. Cert and Key go together and may both be empty; Roots may be empty.
//
// The key file must be a regular file of root or of the daemon's own user and closed to others, as libpq demands: mode
// 0600 or less, or 0640 or less if root owns it.
type FileSource struct {
	Cert  string // path of the client certificate, leaf first, then its issuers
	Key   string // path of its private key, in clear
	Roots string // path of the trust anchors
	// Purpose is what the certificate must be good for.
	Purpose Purpose
}

// Load reads and validates the files as one set. Files that change while they are read are read again, a few times; if
// they do not come to rest the set is refused with reason Unreadable.
func (f FileSource) Load(_ context.Context, now time.Time) (*Material, error) {
	set, err := f.read()
	if err != nil {
		return nil, err
	}
	return set.Parse(now)
}

// Watch returns the paths that were given, without empty ones: what a watcher should look at.
func (f FileSource) Watch() []string {
	var paths []string
	for _, p := range []string{f.Cert, f.Key, f.Roots} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	return paths
}

// read takes the files twice and wants both takes equal, so that it never pairs the certificate of one set with the key
// of the next. A Kubernetes volume is replaced by moving its one link "..data", so there the link is resolved once a
// take and the files are read behind it.
func (f FileSource) read() (PEMSet, error) {
	const attempts = 4
	last, err := f.take()
	for range attempts {
		var next PEMSet
		next, nextErr := f.take()
		if err == nil && nextErr == nil && last.same(next) {
			return next, nil
		}
		// The same failure twice is not a change in progress.
		if err != nil && nextErr != nil && err.Error() == nextErr.Error() {
			return PEMSet{}, nextErr
		}
		last, err = next, nextErr
	}
	if err != nil {
		return PEMSet{}, err
	}
	path := f.Watch()[0]
	return PEMSet{}, refuse(Unreadable, path, "%s or a file of its set kept changing while it was read: write new files "+
		"under other names and rename them into place", path)
}

func (p PEMSet) same(q PEMSet) bool {
	return bytes.Equal(p.Cert, q.Cert) && bytes.Equal(p.Key, q.Key) && bytes.Equal(p.Roots, q.Roots)
}

func (f FileSource) take() (set PEMSet, err error) {
	set.CertPath, set.KeyPath, set.RootsPath, set.Purpose = f.Cert, f.Key, f.Roots, f.Purpose
	dirs := map[string]string{} // folder of a Kubernetes volume → what its ..data pointed to in this take
	if set.Cert, err = readFile(f.Cert, pin(f.Cert, dirs), maxFileSize, false); err != nil {
		return PEMSet{}, err
	}
	if set.Key, err = readFile(f.Key, pin(f.Key, dirs), maxFileSize, true); err != nil {
		return PEMSet{}, err
	}
	if set.Roots, err = readFile(f.Roots, pin(f.Roots, dirs), maxFileSize, false); err != nil {
		return PEMSet{}, err
	}
	return set, nil
}

// pin replaces "..data" in the link that path is by what it points to, the same for all files of one take.
func pin(path string, dirs map[string]string) string {
	link, err := os.Readlink(path)
	name, inVolume := strings.CutPrefix(link, "..data/")
	if err != nil || !inVolume {
		return path
	}
	dir := filepath.Dir(path)
	if _, seen := dirs[dir]; !seen {
		data, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			return path
		}
		if !filepath.IsAbs(data) {
			data = filepath.Join(dir, data)
		}
		dirs[dir] = data
	}
	return filepath.Join(dirs[dir], name)
}

// maxListsSize bounds the revocation lists of one file. 64 MiB: about a million certificates.
const maxListsSize = 64 << 20

// ReadLists reads a file of certificate revocation lists whole, without looking into it. Errors are of type *Error, reason
// Unreadable: it cannot be read, is not a regular file, empty, or larger than 64 MiB.
func ReadLists(path string) ([]byte, error) { return readFile(path, path, maxListsSize, false) }

// readFile reads at, and calls it path in errors. An empty path is an absent part. O_NONBLOCK keeps a named pipe from
// blocking the open.
func readFile(path, at string, most int, isKey bool) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, unreadable(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(Unreadable, path, "%s is not a regular file: name a PEM file", path)
	}
	if isKey {
		if err := checkMode(path, info); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	switch {
	case err != nil:
		return nil, unreadable(path, err)
	case len(data) > most:
		return nil, refuse(Unreadable, path, "%s is larger than %d MiB: this is not a PEM file", path, most>>20)
	case len(data) == 0:
		return nil, refuse(Unreadable, path, "%s is empty: write the file anew", path)
	}
	return data, nil
}

func unreadable(path string, err error) error {
	advice := "check the path and its permissions"
	if errors.Is(err, fs.ErrPermission) {
		advice = fmt.Sprintf("let uid %d read it", os.Geteuid())
	}
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	e := refuse(Unreadable, path, "%s cannot be read (%v): %s", path, err, advice)
	e.Err = err
	return e
}

// checkMode applies libpq's rule to the opened file.
func checkMode(path string, info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if self := uint32(os.Geteuid()); stat.Uid != 0 && stat.Uid != self {
		return refuse(Exposed, path, "private key %s belongs to uid %d, who could replace it: it must belong to root or "+
			"to uid %d (chown %d %s)", path, stat.Uid, self, self, path)
	}
	forbidden := fs.FileMode(0o077)
	if stat.Uid == 0 {
		forbidden = 0o037 // root's files may be readable for a group
	}
	if mode := info.Mode().Perm(); mode&forbidden != 0 {
		return refuse(Exposed, path, "private key %s is open to others (mode %04o): chmod 0600 %s (for a Kubernetes secret: "+
			"defaultMode: 0400)", path, mode, path)
	}
	return nil
}
