package apply

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"

	"freehold.dev/freehold/internal/kernel/secrets"
	"freehold.dev/freehold/internal/kernel/store"
)

// passphrase answers the passphrase of a tenant's state, and makes one for a tenant that has none: 256 random bits,
// hexadecimal.
func passphrase(tx store.Tx, root *secrets.Root, uid string) (string, error) {
	p, err := knownPassphrase(tx, root, uid)
	if !errors.Is(err, store.ErrNotFound) {
		return p, err
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	p = hex.EncodeToString(secret)
	return p, tx.PutBlob(blob(uid, "key"), root.Seal([]byte(p), uid))
}

func knownPassphrase(r store.Reader, root *secrets.Root, uid string) (string, error) {
	sealed, err := r.Blob(blob(uid, "key"))
	if err != nil {
		return "", err
	}
	p, err := root.Unseal(sealed, uid)
	if err != nil {
		return "", fmt.Errorf("%w: the key of this tenant's state cannot be unwrapped", secrets.ErrMismatch)
	}
	return string(p), nil
}

// blobs of tenants lie below this prefix, by UID.
const tenants = "cloud/tenants/"

func blob(uid, name string) string { return tenants + uid + "/" + name }
