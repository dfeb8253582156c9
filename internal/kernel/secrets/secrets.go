// Package secrets keeps one root secret outside the database, and protects with it what is in there.
package secrets

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

// ErrMismatch means that the root secret is missing, damaged, or another one than the database was written with.
var ErrMismatch = errors.New("the root secret does not fit the database")

const (
	size = 32 // bytes of the secret, and of the keys that are derived for encryption
	// check is a blob that only the right root secret opens. Its name and purpose are part of what is stored.
	check        = "cloud/root-check"
	checkPurpose = "root"
)

// Root derives keys from the root secret, and encrypts with one of them.
type Root struct {
	secret []byte
	aead   cipher.AEAD
}

// Open reads the root secret from a file (64 hexadecimal digits). It makes the file if neither it nor a database that was
// written with another one exists; ErrMismatch otherwise. A file that group or others have rights to, as after a restore
// that lost its mode, is left to its owner alone.
func Open(ctx context.Context, s store.Store, path string) (*Root, error) {
	var sealed []byte
	err := s.View(ctx, func(r store.Reader) (err error) {
		sealed, err = r.Blob(check)
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
	case errors.Is(err, os.ErrNotExist) && sealed != nil:
		return nil, fmt.Errorf("%w: %s is missing, and without it nothing that it protects can be read: restore it from the backup that the database is from", ErrMismatch, path)
	case errors.Is(err, os.ErrNotExist):
		if raw, err = generate(path); err != nil {
			return nil, fmt.Errorf("write the root secret: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("read the root secret: %w", err)
	}
	if err := tighten(path); err != nil {
		return nil, fmt.Errorf("keep the root secret from other users: %w", err)
	}
	root, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %s %w", ErrMismatch, path, err)
	}
	if sealed == nil {
		return root, s.Update(ctx, func(tx store.Tx) error { return tx.PutBlob(check, root.Seal([]byte("freehold"), checkPurpose)) })
	}
	if _, err := root.Unseal(sealed, checkPurpose); err != nil {
		return nil, fmt.Errorf("%w: %s is another one than the database was written with: restore both from the same backup", ErrMismatch, path)
	}
	return root, nil
}

// generate writes a new secret. The file is there whole or not at all, and lasts before anything is protected with it.
func generate(path string) ([]byte, error) {
	secret := make([]byte, size)
	_, _ = rand.Read(secret)
	raw := []byte(hex.EncodeToString(secret) + "\n")
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return raw, errors.Join(dir.Sync(), dir.Close())
}

// tighten leaves the file to its owner.
func tighten(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return os.Chmod(path, info.Mode().Perm()&0o700)
}

func parse(raw []byte) (*Root, error) {
	secret, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(secret) != size {
		return nil, errors.New("is not a root secret: it has to be 64 hexadecimal digits")
	}
	root := &Root{secret: secret}
	block, err := aes.NewCipher(root.Key("freehold sealed values"))
	if err != nil {
		return nil, err
	}
	root.aead, err = cipher.NewGCMWithRandomNonce(block)
	return root, err
}

// Key derives the 256-bit key of one use. The same use gets the same key as long as the root secret stays.
func (r *Root) Key(use string) []byte {
	key, err := hkdf.Key(sha256.New, r.secret, nil, use, size)
	if err != nil {
		panic("secrets: " + err.Error()) // only for a key of more than 255 hashes
	}
	return key
}

// Seal encrypts for one purpose: the name of what it belongs to.
func (r *Root) Seal(plain []byte, purpose string) []byte {
	return r.aead.Seal(nil, nil, plain, []byte(purpose))
}

// Unseal decrypts what was sealed for the same purpose; anything else is an error.
func (r *Root) Unseal(sealed []byte, purpose string) ([]byte, error) {
	return r.aead.Open(nil, nil, sealed, []byte(purpose))
}

// String keeps the secret out of logs.
func (r *Root) String() string { return "[secret]" }
