package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"pghandoff/proxy/audit"
)

// showAudit prints the audit lines of the three functions' leases.
func (s *stage) showAudit(ctx context.Context) error {
	lines, err := s.awaitAudit(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(s.out, "\nWhat the audit says of the three functions' leases:")
	for _, l := range lines {
		fmt.Fprintf(s.out, "%s\n", l)
	}
	fmt.Fprintln(s.out)
	return nil
}

// functions is how many leases the functions of showFunctions took, the first
// there were.
const functions = 3

// awaitAudit waits until the audit file has both lines of each of these.
func (s *stage) awaitAudit(ctx context.Context) ([][]byte, error) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(5 * time.Second); ; {
		data, err := os.ReadFile(s.daemon.Audit)
		if err != nil {
			return nil, fmt.Errorf("read audit: %w", err)
		}
		if lines := leaseLines(data); len(lines) == 2*functions {
			return lines, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the audit file %s does not show the leases", s.daemon.Audit)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// leaseLines returns the lines of the first leases in the file.
func leaseLines(data []byte) [][]byte {
	var ids []string
	var out [][]byte
	for line := range bytes.Lines(data) {
		var e audit.Event
		if json.Unmarshal(line, &e) != nil || e.Lease == "" {
			continue
		}
		if e.Event == audit.LeaseGranted && len(ids) < functions {
			ids = append(ids, e.Lease)
		}
		if slices.Contains(ids, e.Lease) {
			out = append(out, bytes.TrimSpace(line))
		}
	}
	return out
}
