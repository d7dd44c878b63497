package proxy

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"

	"pghandoff/proxy/config"
)

// rule is a configured rule with its names looked up. A nil key was not given.
type rule struct {
	uid, gid *uint32
	any      bool
}

// access decides who may use a route. The zero value lets in root and the
// daemon's own user.
type access struct {
	own   uint32
	rules []rule
}

// newAccess looks up the names in rules on this host.
func newAccess(own uint32, rules []config.Rule) (access, error) {
	a := access{own: own}
	for i, r := range rules {
		out, err := lookupRule(r)
		if err != nil {
			return a, fmt.Errorf("allow[%d]: %w", i, err)
		}
		a.rules = append(a.rules, out...)
	}
	return a, nil
}

// lookupRule returns the rule, or none if its keys contradict each other.
func lookupRule(r config.Rule) ([]rule, error) {
	out := rule{uid: r.UID, gid: r.GID, any: r.Any}
	if r.User != "" {
		u, err := user.Lookup(r.User)
		if err != nil {
			return nil, fmt.Errorf("there is no user %q on this host", r.User)
		}
		id, err := parseID(u.Uid)
		if err != nil || out.uid != nil && *out.uid != id {
			return nil, fmt.Errorf("user %q is not uid %d", r.User, *out.uid)
		}
		out.uid = &id
	}
	if r.Group != "" {
		id, err := lookupGroup(r.Group)
		if err != nil {
			return nil, err
		}
		if out.gid != nil && *out.gid != id {
			return nil, fmt.Errorf("group %q is not gid %d", r.Group, *out.gid)
		}
		out.gid = &id
	}
	return []rule{out}, nil
}

// lookupGroup takes a name or a number.
func lookupGroup(s string) (uint32, error) {
	if id, err := parseID(s); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(s)
	if err != nil {
		return 0, fmt.Errorf("there is no group %q on this host", s)
	}
	return parseID(g.Gid)
}

func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

// allows reports whether some rule matches the peer in every key.
func (a *access) allows(p *Peer) bool {
	if len(a.rules) == 0 {
		return p.isUID(0) || p.isUID(a.own)
	}
	return slices.ContainsFunc(a.rules, func(r rule) bool { return r.matches(p) })
}

func (r *rule) matches(p *Peer) bool {
	if r.uid == nil && r.gid == nil {
		return r.any
	}
	return (r.uid == nil || p.isUID(*r.uid)) && (r.gid == nil || p.inGroup(*r.gid))
}

// isUID compares user ids: the overflow id is nobody, and uid 0 is root only
// from our own namespaces.
func (p *Peer) isUID(uid uint32) bool {
	return p.UID == uid && uid != overflowID && (uid != 0 || p.HostRoot)
}

func (p *Peer) inGroup(gid uint32) bool {
	return gid != overflowID && (p.GID == gid || slices.Contains(p.Groups, gid)) && (gid != 0 || p.HostRoot || p.UID != 0)
}
