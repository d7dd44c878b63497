package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"pghandoff/pgwire"
)

// maxUsersFile bounds the file of users. 16 MiB, some 100,000 of them.
const maxUsersFile = 16 << 20

// users are those who may log in at the TCP listener, by name.
type users map[string]pgwire.Verifier

// readUsers reads a file of lines "name" "verifier", both in double quotes, in
// which a double quote is written twice; lines that are empty or begin with ; or #
// are left out. Errors show line numbers, and nothing of a verifier.
func readUsers(path string) (users, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("%s can be read by everybody (mode %04o): chmod o-rwx it", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxUsersFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxUsersFile {
		return nil, fmt.Errorf("%s is longer than 16 MiB", path)
	}
	all, err := parseUsers(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

func parseUsers(text []byte) (users, error) {
	all := users{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == ';' || line[0] == '#' {
			continue
		}
		name, rest, ok1 := quotedWord(line)
		secret, rest, ok2 := quotedWord(strings.TrimSpace(rest))
		if !ok1 || !ok2 || strings.TrimSpace(rest) != "" || name == "" {
			return nil, fmt.Errorf("line %d: not of the form \"name\" \"SCRAM-SHA-256$…\"", n)
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("line %d: user %q is there twice", n, name)
		}
		v, err := pgwire.ParseVerifier(secret)
		if err != nil {
			return nil, fmt.Errorf("line %d: user %q: %w", n, name, err)
		}
		all[name] = v
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("names no user")
	}
	return all, nil
}

// quotedWord takes a word in double quotes from the beginning of s.
func quotedWord(s string) (word, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", s, false
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			return b.String(), s[i+1:], true
		}
	}
	return "", s, false
}
