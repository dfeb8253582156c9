package apply

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"freehold.dev/freehold/internal/kernel/store"
)

// rootCheck is a blob that only the right root secret opens.
const rootCheck = "cloud/root-check"

// root wraps the tenants' passphrases. It is kept outside the database.
type root struct{ aead cipher.AEAD }

// openRoot reads the root secret, or makes it if neither it nor anything that it would have wrapped exists.
func openRoot(ctx context.Context, s store.Store, path string) (*root, error) {
	var check []byte
	err := s.View(ctx, func(r store.Reader) (err error) {
		check, err = r.Blob(rootCheck)
		if errors.Is(err, store.ErrNotFound) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && check != nil:
		return nil, fmt.Errorf("%w: %s is missing, and without it no tenant's state can be read: restore it from the backup that the database is from", ErrRootSecret, path)
	case errors.Is(err, os.ErrNotExist):
		if raw, err = makeRoot(path); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	k, err := newRoot(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %w", ErrRootSecret, path, err)
	}
	if check == nil {
		return k, s.Update(ctx, func(tx store.Tx) error { return tx.PutBlob(rootCheck, k.seal([]byte("freehold"), "root")) })
	}
	if _, err := k.open(check, "root"); err != nil {
		return nil, fmt.Errorf("%w: %s is another one than the database was written with: restore both from the same backup", ErrRootSecret, path)
	}
	return k, nil
}

func makeRoot(path string) ([]byte, error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	raw := []byte(hex.EncodeToString(secret) + "\n")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(path)
		return nil, fmt.Errorf("write the root secret: %w", err)
	}
	// Its directory entry has to last before anything is wrapped with it.
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	return raw, dir.Sync()
}

func newRoot(raw []byte) (*root, error) {
	secret, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(secret) != 32 {
		return nil, errors.New("is not a root secret: it has to be 64 hexadecimal digits")
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "freehold tenant passphrases", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &root{aead}, err
}

// seal encrypts for one purpose (a tenant's UID); open with another purpose fails.
func (k *root) seal(plain []byte, purpose string) []byte {
	return k.aead.Seal(nil, nil, plain, []byte(purpose))
}

func (k *root) open(sealed []byte, purpose string) ([]byte, error) {
	return k.aead.Open(nil, nil, sealed, []byte(purpose))
}

// passphrase answers the passphrase of a tenant's state, and makes one for a tenant that has none: 256 random bits,
// hexadecimal.
func (k *root) passphrase(tx store.Tx, uid string) (string, error) {
	p, err := k.knownPassphrase(tx, uid)
	if !errors.Is(err, store.ErrNotFound) {
		return p, err
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	p = hex.EncodeToString(secret)
	return p, tx.PutBlob(blob(uid, "key"), k.seal([]byte(p), uid))
}

func (k *root) knownPassphrase(r store.Reader, uid string) (string, error) {
	sealed, err := r.Blob(blob(uid, "key"))
	if err != nil {
		return "", err
	}
	p, err := k.open(sealed, uid)
	if err != nil {
		return "", fmt.Errorf("%w: the key of this tenant's state cannot be unwrapped", ErrRootSecret)
	}
	return string(p), nil
}

// blobs of tenants lie below this prefix, by UID.
const tenants = "cloud/tenants/"

func blob(uid, name string) string { return tenants + uid + "/" + name }
