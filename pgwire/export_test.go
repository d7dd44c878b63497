package pgwire

import "bytes"

// Equal compares all of two verifiers, and not in constant time.
func (v Verifier) Equal(w Verifier) bool {
	return v.keys.KeyFactors == w.keys.KeyFactors && bytes.Equal(v.keys.StoredKey, w.keys.StoredKey) && bytes.Equal(v.keys.ServerKey, w.keys.ServerKey)
}
