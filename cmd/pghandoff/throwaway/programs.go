package throwaway

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// BinEnv names the environment variable with the folder of the server programs; it comes before every other place.
const BinEnv = "PGHANDOFF_PG_BIN"

// FindPrograms returns the folder that holds initdb and postgres. It looks into $PGHANDOFF_PG_BIN and nowhere else if
// that is set; then on PATH, where pg_config points, and where the usual packages install, newest version first; and as
// the last resort it fetches the programs into a cache folder (see fetch).
func FindPrograms(ctx context.Context) (binDir string, err error) {
	if dir := os.Getenv(BinEnv); dir != "" {
		if missing := missingProgram(dir); missing != "" {
			return "", fmt.Errorf("%s is %s, which has no %s: name the folder of PostgreSQL's server programs", BinEnv, dir, missing)
		}
		return dir, nil
	}
	if dir := installed(ctx); dir != "" {
		return dir, nil
	}
	dir, err := fetch(ctx)
	if err != nil {
		return "", fmt.Errorf("no PostgreSQL server is installed and none could be fetched: install one (Debian: apt install "+
			"postgresql) or set %s to its bin folder: %w", BinEnv, err)
	}
	return dir, nil
}

// installed returns the first folder with the programs, or "".
func installed(ctx context.Context) string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",                      // Debian, Ubuntu
		"/usr/pgsql-*/bin",                               // PGDG on Red Hat
		"/usr/local/pgsql/bin",                           // built from source
		"/usr/libexec/postgresql*",                       // Alpine
		"/opt/homebrew/opt/postgresql*/bin",              // Homebrew
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin", // Homebrew on Linux
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if missingProgram(dir) == "" {
			return dir
		}
	}
	return ""
}

func missingProgram(dir string) string {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return name
		}
	}
	return ""
}

var number = regexp.MustCompile(`\d+`)

// version takes the last number of a path as PostgreSQL's major version: 9.6 counts as 6, which is fine for a choice
// of the newest.
func version(path string) int {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1]) // out of range gives the largest int
	return n
}
