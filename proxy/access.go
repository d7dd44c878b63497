package proxy

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"pghandoff/proxy/config"
)

// rule is a configured rule with its names looked up. A nil key was not given.
type rule struct {
	uid, gid *uint32
	any      bool
	// of a certificate; empty: not given
	certCN, certDN, certURI string
}

// access decides who may use a route. The zero value lets in root and the
// daemon's own user.
type access struct {
	own   uint32
	rules []rule
}

// newAccess looks up the names in rules on this host. The error tells of every
// rule that cannot be used.
func newAccess(own uint32, rules []config.Rule) (access, error) {
	a := access{own: own}
	var problems []string
	for i, r := range rules {
		out, err := lookupRule(r)
		if err != nil {
			problems = append(problems, fmt.Sprintf("allow[%d]: %v", i, err))
			continue
		}
		a.rules = append(a.rules, out)
	}
	if len(problems) > 0 {
		return a, errors.New(strings.Join(problems, "; "))
	}
	return a, nil
}

// lookupRule returns the rule; that its keys contradict each other is an error.
func lookupRule(r config.Rule) (rule, error) {
	out := rule{uid: r.UID, gid: r.GID, any: r.Any, certCN: r.CertCN, certDN: r.CertDN, certURI: r.CertURI}
	if r.User != "" {
		u, err := user.Lookup(r.User)
		if err != nil {
			return rule{}, fmt.Errorf("there is no user %q on this host", r.User)
		}
		if out.uid, err = sameID("user", r.User, u.Uid, r.UID); err != nil {
			return rule{}, err
		}
	}
	if r.Group != "" {
		id, err := lookupGroup(r.Group)
		if err != nil {
			return rule{}, err
		}
		if out.gid, err = sameID("group", r.Group, strconv.FormatUint(uint64(id), 10), r.GID); err != nil {
			return rule{}, err
		}
	}
	return out, nil
}

// sameID returns the id that the host's database has for a name, which must be
// the given one, if there is one.
func sameID(kind, name, found string, given *uint32) (*uint32, error) {
	id, err := parseID(found)
	if err != nil {
		return nil, fmt.Errorf("%s %q has the id %q on this host, which is not a number from 0 to 4294967295", kind, name, found)
	}
	if given != nil && *given != id {
		return nil, fmt.Errorf("%s %q has the id %d on this host, not %d: leave one of the two keys out", kind, name, id, *given)
	}
	return &id, nil
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
	id, err := sameID("group", s, g.Gid, nil)
	if err != nil {
		return 0, err
	}
	return *id, nil
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
	if r.uid == nil && r.gid == nil && r.certCN+r.certDN+r.certURI == "" {
		return r.any
	}
	return (r.uid == nil || p.isUID(*r.uid)) && (r.gid == nil || p.inGroup(*r.gid)) &&
		(r.certCN == "" || p.showsCommonName(r.certCN)) && (r.certDN == "" || p.showsDN(r.certDN)) && (r.certURI == "" || p.showsURI(r.certURI))
}

// isUID compares user ids: the overflow id is nobody, and uid 0 is root only
// from our own namespaces.
func (p *Peer) isUID(uid uint32) bool {
	return p.UID == uid && uid != overflowID && (uid != 0 || p.HostRoot())
}

func (p *Peer) inGroup(gid uint32) bool {
	return gid != overflowID && (p.GID == gid || slices.Contains(p.Groups(), gid)) && (gid != 0 || p.HostRoot() || p.UID != 0)
}
