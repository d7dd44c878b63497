package certs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watcher tells when files may have changed. It watches their folders, since a file that is replaced takes its watch
// along, and looks by itself from time to time: events are lost on some file systems, and when a folder is replaced.
type Watcher struct {
	Paths  []string
	Poll   time.Duration // between two looks without an event; zero means 10 s
	Settle time.Duration // without a further event before it tells; zero means 100 ms
	Most   time.Duration // that it waits at all, however many events come; zero means 1 s
}

// Run calls changed until ctx is done: at once, after events and at each look. It blocks; changed is called on its
// goroutine. Without inotify (its limits may be used up) it goes on looking, and warn is told, once.
func (w Watcher) Run(ctx context.Context, changed func(), warn func(error)) {
	w.Poll, w.Settle, w.Most = or(w.Poll, 10*time.Second), or(w.Settle, 100*time.Millisecond), or(w.Most, time.Second)
	var events chan fsnotify.Event
	var failures chan error
	folders := &folders{seen: map[string]inode{}}
	if watch, err := fsnotify.NewWatcher(); err != nil {
		warn(fmt.Errorf("files are looked at every %s only: %w", w.Poll, err))
	} else {
		defer watch.Close()
		folders.watch, events, failures = watch, watch.Events, watch.Errors
	}
	poll := time.NewTicker(w.Poll)
	defer poll.Stop()
	quiet := time.NewTimer(0) // the first call is due at once
	var since time.Time       // of the first event that was not told; zero: none
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-failures: // events were lost
		case <-events:
			if since.IsZero() {
				since = time.Now()
			}
			quiet.Reset(max(0, min(w.Settle, time.Until(since.Add(w.Most)))))
			continue
		case <-quiet.C:
		}
		since = time.Time{}
		folders.follow(w.Paths)
		changed()
	}
}

func or(d, instead time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return instead
}

// inode tells whether a folder is still the one that is watched.
type inode struct{ dev, ino uint64 }

type folders struct {
	watch *fsnotify.Watcher // nil: there is no inotify
	seen  map[string]inode
}

// follow watches the folders of the paths, anew where another folder has taken the place.
func (f *folders) follow(paths []string) {
	if f.watch == nil {
		return
	}
	for _, path := range paths {
		dir := filepath.Dir(path)
		info, err := os.Stat(dir)
		if err != nil {
			f.drop(dir)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		now := inode{uint64(st.Dev), st.Ino}
		watched := slices.Contains(f.watch.WatchList(), dir)
		if watched && f.seen[dir] == now {
			continue
		}
		f.drop(dir)
		if f.watch.Add(dir) == nil {
			f.seen[dir] = now
		}
	}
}

func (f *folders) drop(dir string) {
	_ = f.watch.Remove(dir) // it may have gone by itself
	delete(f.seen, dir)
}
