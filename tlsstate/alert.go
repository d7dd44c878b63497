package tlsstate

import (
	"errors"
	"fmt"
)

// Alert descriptions, RFC 8446 section 6. The others have names only.
const (
	alertCloseNotify       uint8 = 0
	alertUnexpectedMessage uint8 = 10
	alertBadRecordMAC      uint8 = 20
	alertRecordOverflow    uint8 = 22
	alertBadCertificate    uint8 = 42
	alertIllegalParameter  uint8 = 47
	alertDecodeError       uint8 = 50
	alertProtocolVersion   uint8 = 70
	alertInternalError     uint8 = 80
	alertUserCanceled      uint8 = 90
	alertNoRenegotiation   uint8 = 100
	alertNoALPN            uint8 = 120

	alertWarning = 1
	alertFatal   = 2
)

var alertNames = map[uint8]string{
	0: "close_notify", 10: "unexpected_message", 20: "bad_record_mac", 21: "decryption_failed_RESERVED",
	22: "record_overflow", 30: "decompression_failure_RESERVED", 40: "handshake_failure", 41: "no_certificate_RESERVED",
	42: "bad_certificate", 43: "unsupported_certificate", 44: "certificate_revoked", 45: "certificate_expired",
	46: "certificate_unknown", 47: "illegal_parameter", 48: "unknown_ca", 49: "access_denied", 50: "decode_error",
	51: "decrypt_error", 60: "export_restriction_RESERVED", 70: "protocol_version", 71: "insufficient_security",
	80: "internal_error", 86: "inappropriate_fallback", 90: "user_canceled", 100: "no_renegotiation_RESERVED",
	109: "missing_extension", 110: "unsupported_extension", 111: "certificate_unobtainable_RESERVED",
	112: "unrecognized_name", 113: "bad_certificate_status_response", 114: "bad_certificate_hash_value_RESERVED",
	115: "unknown_psk_identity", 116: "certificate_required", 120: "no_application_protocol", 121: "ech_required",
}

func alertName(code uint8) string {
	if name, ok := alertNames[code]; ok {
		return name
	}
	return fmt.Sprintf("alert %d", code)
}

const brokenPath = "something on the path changes bytes, or one of the two TLS libraries has a bug; compare their versions, and see the server's log"

// alertHints say what to do. Those about certificates mean our client certificate: with TLS 1.3 they come only after the
// handshake, as the answer to the first read.
var alertHints = map[uint8]string{
	10:  "the server did not expect what we sent: " + brokenPath,
	20:  "the server could not decrypt what we sent: " + brokenPath,
	21:  "the server could not decrypt what we sent: " + brokenPath,
	22:  "the server got a longer record than it takes: " + brokenPath,
	30:  "the server wants compression, which TLS has given up: update its OpenSSL",
	40:  "the server found no common parameters, or wants something that we did not send: see the server's log, and its ssl_ciphers and ssl_ecdh_curve",
	42:  "the server refused our client certificate: it or its signature is malformed; see the server's log",
	43:  "the server refused our client certificate: its kind is not supported (key type, or an extended key usage without clientAuth)",
	44:  "the server refused our client certificate: it is on the server's revocation list (ssl_crl_file); issue a new one",
	45:  "the server refused our client certificate: it has expired or is not yet valid; renew it, and compare the clocks",
	46:  "the server refused our client certificate for a reason it does not name; see the server's log",
	47:  "the server found a value in our handshake that it does not take: " + brokenPath,
	48:  "the server refused our client certificate: it knows no authority that signed it; add that to the server's ssl_ca_file, or send the intermediates",
	49:  "the server refused our client certificate: it is valid, but not allowed",
	50:  "the server could not read what we sent: " + brokenPath,
	51:  "the server refused our client certificate or handshake: a signature does not verify; does the key belong to the certificate?",
	70:  "the server speaks no TLS version that we offer: raise ssl_max_protocol_version there, or look at tls.min_version",
	71:  "the server wants stronger cipher suites or keys than we offer",
	80:  "the server had an internal error; see the server's log",
	86:  "the server knows a newer TLS version than we were allowed to offer: look at tls.min_version and what limits the newest",
	90:  "the server gave the handshake up by itself; see the server's log",
	100: "the server wants to negotiate anew, which is refused",
	109: "the server misses an extension in our handshake; see the server's log",
	110: "the server got an extension that it did not ask for: " + brokenPath,
	112: "the server does not know the host name that we asked for: check the route's host",
	113: "the server does not take the revocation status that it was sent; see the server's log",
	115: "the server does not know the key that was agreed before, though none was: " + brokenPath,
	116: "the server wants a client certificate and we sent none: give the route an identity",
	120: "the server does not speak the protocol postgresql on this port: is it a PostgreSQL server?",
}

// clientAlertHints are those for alerts of a client about our certificate, in the server's role.
var clientAlertHints = map[uint8]string{
	40:  "the client shares no TLS parameters with us: it needs TLS 1.3, or TLS 1.2 with ECDHE and AES-GCM or ChaCha20-Poly1305",
	42:  "the client refused our certificate: it or its signature is malformed",
	43:  "the client refused our certificate: its kind is not supported",
	44:  "the client refused our certificate: it is revoked; issue a new one",
	45:  "the client refused our certificate: it has expired or is not yet valid; renew it, and compare the clocks",
	46:  "the client refused our certificate for a reason it does not name, often its name: connect by a name in it",
	48:  "the client refused our certificate: it does not know the authority; give it our root (sslrootcert)",
	51:  "the client refused our handshake: a signature does not verify; does the key belong to the certificate?",
	70:  "the client speaks no TLS version that we accept",
	112: "the client was sent a name that it did not ask for",
}

// AlertError is a fatal alert that the peer sent. The connection is dead.
type AlertError struct {
	Code       uint8 // alert description, RFC 8446 section 6
	FromClient bool  // the peer is a client, and we are the server
}

// Name is the alert's name in RFC 8446.
func (e *AlertError) Name() string { return alertName(e.Code) }

func (e *AlertError) Error() string {
	if e.FromClient {
		if hint, ok := clientAlertHints[e.Code]; ok {
			return fmt.Sprintf("%s (TLS alert %d, %s)", hint, e.Code, e.Name())
		}
		return fmt.Sprintf("the client ended TLS with alert %d, %s", e.Code, e.Name())
	}
	if hint, ok := alertHints[e.Code]; ok {
		return fmt.Sprintf("%s (TLS alert %d, %s)", hint, e.Code, e.Name())
	}
	return fmt.Sprintf("the server ended TLS with alert %d, %s; see the server's log", e.Code, e.Name())
}

// ClientCertificate reports whether the alert is about the certificate that we sent or did not send, so that a candidate
// identity can be blamed for it.
func (e *AlertError) ClientCertificate() bool {
	if e.FromClient {
		return false
	}
	switch e.Code {
	case 42, 43, 44, 45, 46, 48, 49, 51, 116:
		return true
	}
	return false
}

// AppendAlert appends to dst the fatal alert that tells the peer why we give up, in a record of its own; err is what Open
// or another method returned. It works once, on a dead connection too, as the sending direction is intact when the
// receiving one failed. Nothing is appended when there is nothing to say: the peer sent the alert, or sending is closed.
func (c *Conn) AppendAlert(dst []byte, err error) ([]byte, error) {
	var peer *AlertError
	if err == nil || c.both.closed.Load() || c.out.broken || errors.As(err, &peer) {
		return dst, nil
	}
	code := alertInternalError
	var broke *ProtocolError
	if errors.As(err, &broke) {
		code = broke.Alert
	}
	level := byte(alertFatal)
	if code == alertNoRenegotiation {
		level = alertWarning // always, RFC 5246 section 7.2.2
	}
	c.both.closed.Store(true)
	c.fail(err)
	return c.out.record(dst, typeAlert, []byte{level, code})
}
