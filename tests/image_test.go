package tests

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const caCertificates = "/etc/ssl/certs/ca-certificates.crt"

// Proves that the Dockerfile builds without a network from a builder image that holds this machine's Go, and that its image
// holds nothing but the static binary and the CA certificates, runs as nobody in particular, and serves from a read-only
// file system until it is told to stop.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds everything anew: left out by -short")
	}
	d := startDocker(t)
	unique := fmt.Sprintf("%d", os.Getpid())
	builder, image := "pghandoff-test-builder:"+unique, "pghandoff-test:"+unique
	importBuilder(t, d, builder)
	d.cleanUp(t, "rmi", "--force", image)
	d.run(t, "build", "--force-rm", "--network=none", "--build-arg=BUILDER="+builder, "--build-arg=GOPROXY=off",
		"--build-arg=VERSION=of-the-test", "--tag="+image, moduleRoot(t))

	t.Run("holds only what it needs", func(t *testing.T) { checkContent(t, d, image) })
	t.Run("is not root", func(t *testing.T) { checkConfig(t, d, image) })
	t.Run("runs", func(t *testing.T) {
		if out := d.run(t, "run", "--rm", "--network=none", image, "version"); !strings.HasPrefix(out, "pghandoff of-the-test") {
			t.Errorf("version printed %q", out)
		}
	})
	t.Run("serves and stops", func(t *testing.T) { checkServing(t, d, image) })
	t.Run("is a function without a network", func(t *testing.T) { checkFunction(t, d, image) })
}

// checkConfig looks at what the image says about its start.
func checkConfig(t *testing.T, d *docker, image string) {
	var all []struct {
		Config struct {
			User            string
			Entrypoint, Cmd []string
			Volumes         map[string]any
		}
	}
	if err := json.Unmarshal([]byte(d.run(t, "image", "inspect", image)), &all); err != nil {
		t.Fatal(err)
	}
	c := all[0].Config
	_, runDir := c.Volumes["/run/pghandoff"]
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/pghandoff"}) || !runDir ||
		!slices.Equal(c.Cmd, []string{"serve", "--config", "/etc/pghandoff/pghandoff.yaml"}) {
		t.Errorf("got %+v", c)
	}
}

// checkServing starts the daemon for a server that is not there, and stops it.
func checkServing(t *testing.T, d *docker, image string) {
	container := d.run(t, "run", "--detach", "--network=none", "--read-only", "--cap-drop=ALL",
		"--env=PGHANDOFF_URL=postgres://app:secret@127.0.0.1:1/orders", image, "serve")
	d.cleanUp(t, "rm", "--force", "--volumes", container)
	var status struct {
		RunDir string `json:"run_dir"`
		Routes []struct{ Name string }
	}
	waitUntil(t, time.Minute, func() error {
		out, err := d.try(t.Context(), nil, "exec", container, "/pghandoff", "status", "--json")
		if err != nil {
			logs, _ := d.try(t.Context(), nil, "logs", container)
			return fmt.Errorf("%w\n%s", err, logs)
		}
		return json.Unmarshal([]byte(out), &status)
	})
	if status.RunDir != "/run/pghandoff" || len(status.Routes) != 1 || status.Routes[0].Name != "orders" {
		t.Errorf("status is %+v", status)
	}
	d.run(t, "stop", container)
	if code := d.run(t, "inspect", "--format={{.State.ExitCode}}", container); code != "0" {
		t.Errorf("stopped with exit code %s", code)
	}
}

// checkContent compares the files of the image's layers with what belongs there.
func checkContent(t *testing.T, d *docker, image string) {
	want := []string{"pghandoff", "run/pghandoff/", "run/pghandoff.control/"}
	if _, err := os.Stat(caCertificates); err == nil {
		want = append(want, strings.TrimPrefix(caCertificates, "/"))
	}
	slices.Sort(want)
	files := imageFiles(t, d, image)
	var got []string
	for name, f := range files {
		if f.header.Typeflag != tar.TypeDir || !hasChild(files, name) {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the image holds %q, want %q", got, want)
	}
	for name, mode := range map[string]fs.FileMode{"pghandoff": 0o755, "run/pghandoff/": 0o755, "run/pghandoff.control/": 0o700} {
		if f, ok := files[name]; ok && fs.FileMode(f.header.Mode).Perm() != mode {
			t.Errorf("%s has mode %04o, want %04o", name, f.header.Mode, mode)
		}
		if f, ok := files[name]; ok && strings.HasSuffix(name, "/") && f.header.Uid != 65532 {
			t.Errorf("%s belongs to uid %d", name, f.header.Uid)
		}
	}
	binary, err := elf.NewFile(bytes.NewReader(files["pghandoff"].content))
	if err != nil {
		t.Fatalf("the binary: %v", err)
	}
	if slices.ContainsFunc(binary.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the binary is linked dynamically")
	}
}

type imageFile struct {
	header  *tar.Header
	content []byte
}

func hasChild(files map[string]imageFile, dir string) bool {
	for name := range files {
		if name != dir && strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// imageFiles returns the files of all layers of an image; names of folders end in a slash.
func imageFiles(t *testing.T, d *docker, image string) map[string]imageFile {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	d.run(t, "save", "--output="+archive, image)
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	saved := readTar(t, data)
	var manifest []struct{ Layers []string }
	if err := json.Unmarshal(saved["manifest.json"].content, &manifest); err != nil {
		t.Fatal(err)
	}
	files := map[string]imageFile{}
	for _, layer := range manifest[0].Layers {
		for name, f := range readTar(t, saved[layer].content) {
			files[name] = f
		}
	}
	return files
}

func readTar(t *testing.T, data []byte) map[string]imageFile {
	t.Helper()
	files := map[string]imageFile{}
	r := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = imageFile{h, content}
	}
}

// importBuilder makes the builder image of this machine's own parts: the compiler, the standard library, the modules that
// the binary is made of, and a shell with the three programs that the Dockerfile calls.
func importBuilder(t *testing.T, d *docker, image string) {
	t.Helper()
	reader, writer := io.Pipe()
	// Ends when everything is written, or when the reader is closed below.
	go func() { writer.CloseWithError(writeBuilder(t.Context(), moduleRoot(t), writer)) }()
	defer reader.Close()
	_, err := d.try(t.Context(), reader, "import", "--change=ENV PATH=/usr/local/go/bin:/bin", "--change=ENV GOROOT=/usr/local/go",
		"--change=ENV GOMODCACHE=/modules", "-", image)
	if err != nil {
		t.Fatal(err)
	}
	d.cleanUp(t, "rmi", "--force", image)
}

// builder is the archive of the builder image.
type builder struct {
	*tar.Writer
	written map[string]bool // Docker refuses names that occur twice
}

func writeBuilder(ctx context.Context, root string, to io.Writer) error {
	w := &builder{tar.NewWriter(to), map[string]bool{}}
	goEnv, err := goEnv(ctx, root)
	if err != nil {
		return err
	}
	if err := w.toolchain(goEnv["GOROOT"]); err != nil {
		return err
	}
	if err := w.modules(ctx, root, goEnv["GOMODCACHE"]); err != nil {
		return err
	}
	for _, program := range []string{"sh", "mkdir", "chmod", "cp"} {
		if err := w.program(ctx, program); err != nil {
			return err
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
		return err
	}
	if err := w.file(caCertificates, caCertificates); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return w.Close()
}

func goEnv(ctx context.Context, root string) (map[string]string, error) {
	out, err := inModule(ctx, root, "go", "env", "-json", "GOROOT", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	var env map[string]string
	return env, json.Unmarshal(out, &env)
}

func inModule(ctx context.Context, root, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = root, &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, errs.Bytes())
	}
	return out, nil
}

// toolchain writes what a build without cgo reads of GOROOT.
func (w *builder) toolchain(goroot string) error {
	tools := "pkg/tool/" + runtime.GOOS + "_" + runtime.GOARCH + "/"
	parts := []string{"VERSION", "go.env", "bin/go", tools + "compile", tools + "asm", tools + "link", "pkg/include", "src"}
	for _, part := range parts {
		err := w.tree(filepath.Join(goroot, part), path.Join("usr/local/go", part), func(name string) bool {
			return name != "src/cmd" && path.Base(name) != "testdata" && !strings.HasSuffix(name, "_test.go")
		}, goroot)
		if err != nil {
			return err
		}
	}
	return nil
}

// modules writes the sources of the modules that the command needs, and what the cache says about all modules.
func (w *builder) modules(ctx context.Context, root, cache string) error {
	out, err := inModule(ctx, root, "go", "list", "-deps", "-f", "{{with .Module}}{{if .Version}}{{.Dir}}{{end}}{{end}}", "./cmd/pghandoff")
	if err != nil {
		return err
	}
	dirs := slices.Compact(slices.Sorted(strings.FieldsSeq(string(out))))
	for _, dir := range dirs {
		name, err := filepath.Rel(cache, dir)
		if err != nil {
			return err
		}
		if err := w.tree(dir, path.Join("modules", name), func(string) bool { return true }, cache); err != nil {
			return err
		}
	}
	return w.tree(filepath.Join(cache, "cache/download"), "modules/cache/download", func(name string) bool {
		switch path.Ext(name) {
		case ".mod", ".info", ".ziphash":
			return true
		}
		info, err := os.Stat(filepath.Join(cache, name))
		return err == nil && info.IsDir() && path.Base(name) != "sumdb"
	}, cache)
}

// program writes a program and the libraries that it is linked with.
func (w *builder) program(ctx context.Context, name string) error {
	program, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := w.file(program, "bin/"+name); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", program, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			if err := w.file(word, word); err != nil {
				return err
			}
		}
	}
	return nil
}

// tree writes what lies below from, which may be a file, for as long as the filter wants it; the filter gets names
// relative to base.
func (w *builder) tree(from, to string, wanted func(name string) bool, base string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(base, file)
		if err != nil {
			return err
		}
		if !wanted(name) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		below, err := filepath.Rel(from, file)
		if err != nil || d.IsDir() {
			return err // folders come into being with their files
		}
		return w.file(file, path.Join(to, below))
	})
}

// file writes one file, and of a link what it points to.
func (w *builder) file(from, to string) error {
	to = path.Clean(strings.TrimPrefix(to, "/"))
	if w.written[to] {
		return nil
	}
	w.written[to] = true
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	header := &tar.Header{Name: to, Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm()), Size: info.Size(),
		ModTime: info.ModTime()}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}
