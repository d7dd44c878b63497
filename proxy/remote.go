package proxy

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/netip"

	"pghandoff/proxy/audit"
)

// remote is a function at the TCP listener: who it has proved to be.
type remote struct {
	address netip.AddrPort
	cert    *x509.Certificate // that chains to client_roots; nil: it has shown none
	user    string            // whose password it knows; empty: it was not asked
}

// String names it for its operator.
func (r *remote) String() string {
	switch {
	case r.user != "":
		return "user \"" + r.user + "\" at " + r.address.Addr().String()
	case r.cert != nil:
		return r.cert.Subject.String() + " at " + r.address.Addr().String()
	}
	return r.address.Addr().String()
}

// newRemote makes the peer of a connection from elsewhere, of which nothing is
// known yet. Its ids are the ones that match no rule.
func newRemote(address netip.AddrPort) *Peer {
	address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
	return &Peer{UID: overflowID, GID: overflowID, remote: &remote{address: address}, socket: -1, root: no, grouped: yes,
		named: &audit.Peer{UID: overflowID, GID: overflowID, Address: address.String()}}
}

// proved notes who the function has proved to be.
func (p *Peer) proved(cert *x509.Certificate, user string) {
	p.remote.cert, p.remote.user = cert, user
	if cert != nil {
		p.named.CertSubject, p.named.CertSerial = cert.Subject.String(), cert.SerialNumber.Text(16)
	}
	p.named.LoginUser = user
}

// commonName returns that of a subject; false: it has none, or several, of which
// nobody can say which one counts.
func commonName(subject pkix.Name) (string, bool) {
	n := 0
	for _, a := range subject.Names {
		if a.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			n++
		}
	}
	return subject.CommonName, n == 1
}

// showsCommonName, showsDN and showsURI compare what a function's certificate
// says. Without a certificate nothing matches.
func (p *Peer) showsCommonName(want string) bool {
	if p.remote == nil || p.remote.cert == nil {
		return false
	}
	name, ok := commonName(p.remote.cert.Subject)
	return ok && name == want
}

func (p *Peer) showsDN(want string) bool {
	return p.remote != nil && p.remote.cert != nil && p.remote.cert.Subject.String() == want
}

func (p *Peer) showsURI(want string) bool {
	if p.remote == nil || p.remote.cert == nil {
		return false
	}
	for _, u := range p.remote.cert.URIs {
		if u.String() == want {
			return true
		}
	}
	return false
}
