// Package child runs other programs beside this one: a daemon of ours with a
// configuration made for a throwaway PostgreSQL, and what is measured next to
// it.
//
// It refuses to run anything that outlives this process.
//
// Invariants:
//   - A child has a session of its own. An interrupt typed at the terminal
//     reaches us first, and the scheduler gives it a share of the CPU of its
//     own (sched_autogroup): with ours it would pay for what we do.
//   - It ends with Stop, and by a signal of the kernel if this process dies.
//
// The shortest use:
//
//	d, err := child.StartDaemon(child.Settings{Exe: exe, Dir: dir, Route: "orders", Server: cluster})
//	if err != nil { … }
//	defer d.Stop()
//	_, err = d.AwaitWarm(ctx)
package child
