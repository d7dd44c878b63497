// Package bench measures the daemon beside direct connections and beside other
// poolers, on one PostgreSQL that demands TLS, a client certificate and SCRAM:
// every line of the project's table of targets, and what explains it.
//
// It refuses to judge: a target that is missed is a word in a table and no
// error. An error is what could not be run.
//
// Invariants:
//   - What is compared is measured in turn, in rounds, every second round in
//     the reverse order, and compared within the round.
//   - Every daemon, pgbench and server process is in a session of its own:
//     the scheduler's autogroups would else make one pay for another.
//   - All daemons do the same work: verify-full with a client certificate and
//     SCRAM towards the server, DISCARD ALL between two functions, and pools
//     of the same size, warm before anything is measured.
//
// The files: stage.go sets up, peer_linux.go and peer_config.go start the other
// poolers; acquire.go, load.go, rate.go, memory.go and storm.go measure;
// figure.go keeps what they find, targets.go judges, table.go and plot.go show.
//
// The shortest use:
//
//	err := bench.Run(ctx, bench.Options{Out: os.Stdout, Progress: os.Stderr})
package bench
