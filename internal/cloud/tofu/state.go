package tofu

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// Envelope is what can be read of an encrypted state without its key.
type Envelope struct {
	Serial  int64
	Lineage string
}

// ReadEnvelope reads an encrypted state. A body that is anything else, or that has anything unencrypted beside the
// ciphertext, is ErrNotEncrypted.
func ReadEnvelope(body []byte) (Envelope, error) {
	var v struct {
		Serial  *int64                     `json:"serial"`
		Lineage string                     `json:"lineage"`
		Meta    map[string]json.RawMessage `json:"meta"`
		Data    []byte                     `json:"encrypted_data"`
		Version string                     `json:"encryption_version"`
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return Envelope{}, fmt.Errorf("%w: it has to be what OpenTofu writes with state encryption enforced", ErrNotEncrypted)
	}
	if d.More() || len(v.Data) == 0 || len(v.Meta) == 0 || v.Serial == nil {
		return Envelope{}, fmt.Errorf("%w: it has to be what OpenTofu writes with state encryption enforced", ErrNotEncrypted)
	}
	return Envelope{Serial: *v.Serial, Lineage: v.Lineage}, nil
}

// ContentMD5 is the header that OpenTofu sends with a state.
func ContentMD5(body []byte) string {
	sum := md5.Sum(body)
	return base64.StdEncoding.EncodeToString(sum[:])
}
