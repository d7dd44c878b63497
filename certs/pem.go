package certs

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"strings"
)

// A PEM file as this package reads it (RFC 7468, strictly):
//
//	*( comment-line / blank-line )  -----BEGIN kind-----  base64…  -----END kind-----   one or more times
//	*( blank-line )                                                                     at the end
//
// A comment line does not start with "-" and holds no control characters: so a block that lost its beginning, its end
// or its middle (a hole of zero bytes, say) is never taken for a comment.

// splitPEM returns the blocks of data, or an *Error that names path. Unlike pem.Decode in a loop it skips nothing.
func splitPEM(path string, data []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	rest, trailing := data, false
	for len(rest) > 0 {
		line, after := cutLine(rest)
		if !bytes.HasPrefix(line, []byte("-")) {
			if !isComment(line) {
				return nil, refuse(Malformed, path, "%s holds bytes that are not text: it was damaged or is not PEM; "+
					"write it anew (openssl x509 -inform DER converts a certificate)", path)
			}
			trailing = trailing || len(bytes.TrimSpace(line)) > 0
			rest = after
			continue
		}
		n, ok := blockLength(rest)
		if !ok {
			return nil, refuse(Malformed, path, "%s is cut off in or before block %d: write the file whole, best under "+
				"another name and then renamed", path, len(blocks)+1)
		}
		block, left := pem.Decode(rest[:n])
		if block == nil || len(bytes.TrimSpace(left)) > 0 {
			return nil, refuse(Malformed, path, "%s: block %d is damaged: write the file anew", path, len(blocks)+1)
		}
		blocks, rest, trailing = append(blocks, block), rest[n:], false
	}
	if len(blocks) == 0 {
		return nil, refuse(Malformed, path, "%s holds no PEM block: it must hold text that begins with -----BEGIN", path)
	}
	if trailing {
		return nil, refuse(Malformed, path, "%s has text after its last block: it may be cut off; remove the text or "+
			"write the file whole", path)
	}
	return blocks, nil
}

// blockLength returns the length of the block that data starts with, its last line break included.
func blockLength(data []byte) (int, bool) {
	line, rest := cutLine(data)
	kind, ok := strings.CutPrefix(string(bytes.TrimRight(line, " \t\r")), "-----BEGIN ")
	if !ok {
		return 0, false
	}
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		if bytes.HasPrefix(line, []byte("-")) {
			return len(data) - len(rest), string(bytes.TrimRight(line, " \t\r")) == "-----END "+kind
		}
	}
	return 0, false
}

func cutLine(data []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(data, []byte("\n"))
	return line, rest
}

// isComment tells whether every byte of the line is printable, a tab, a carriage return, or beyond ASCII (names in
// bundles are UTF-8 or Latin-1).
func isComment(line []byte) bool {
	for _, c := range line {
		if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
			return false
		}
	}
	return true
}

// parseCertificates reads a file that must hold certificates and nothing else.
func parseCertificates(path string, data []byte) ([]*x509.Certificate, error) {
	blocks, err := splitPEM(path, data)
	if err != nil {
		return nil, err
	}
	certificates := make([]*x509.Certificate, 0, len(blocks))
	for i, block := range blocks {
		if block.Type != "CERTIFICATE" {
			return nil, refuse(Malformed, path, "%s: block %d is a %s: only CERTIFICATE blocks belong in this file",
				path, i+1, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			e := refuse(Malformed, path, "%s: certificate %d cannot be parsed (%v): write the file anew", path, i+1, err)
			e.Err = err
			return nil, e
		}
		certificates = append(certificates, certificate)
	}
	return certificates, nil
}

// parseKey reads a file that must hold one private key in clear: PKCS #8, PKCS #1 or SEC 1, the last one perhaps after
// the EC PARAMETERS block that "openssl ecparam -genkey" writes. Errors of the parsers are dropped, lest they quote.
func parseKey(path string, data []byte) (crypto.Signer, error) {
	blocks, err := splitPEM(path, data)
	if err != nil {
		return nil, err
	}
	if len(blocks) == 2 && blocks[0].Type == "EC PARAMETERS" && blocks[1].Type == "EC PRIVATE KEY" {
		blocks = blocks[1:]
	}
	if len(blocks) != 1 {
		return nil, refuse(Malformed, path, "%s holds %d blocks: it must hold the private key and nothing else", path, len(blocks))
	}
	block := blocks[0]
	var key any
	switch {
	case block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
		return nil, refuse(Encrypted, path, "private key %s is protected by a passphrase, and a daemon has nobody to ask: "+
			"store it in clear with mode 0600 (openssl pkey -in OLD -out NEW)", path)
	case block.Type == "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case block.Type == "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case block.Type == "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, refuse(Malformed, path, "%s holds a %s: a private key is expected there", path, block.Type)
	}
	signer, ok := key.(crypto.Signer)
	if err != nil || !ok {
		return nil, refuse(Malformed, path, "private key %s cannot be parsed: it must be RSA, ECDSA or Ed25519; write it "+
			"anew", path)
	}
	return signer, nil
}
