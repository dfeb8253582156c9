// Package config keeps the contexts of the command line client: which servers it knows, and the tokens to use them.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// Context is one server, as one user.
type Context struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	User   string `json:"user,omitempty"`
	// Token is a secret.
	Token string `json:"token,omitempty"`
	// CertificateAuthority is a PEM file; Fingerprint pins the server's own certificate instead.
	CertificateAuthority string `json:"certificate-authority,omitempty"`
	Fingerprint          string `json:"fingerprint,omitempty"`
}

// Config is the content of the file.
type Config struct {
	CurrentContext string    `json:"current-context,omitempty"`
	Contexts       []Context `json:"contexts,omitempty"`
}

// Get answers the named context, the current one for "".
func (c *Config) Get(name string) (Context, bool) {
	if name == "" {
		name = c.CurrentContext
	}
	for _, x := range c.Contexts {
		if x.Name == name && name != "" {
			return x, true
		}
	}
	return Context{}, false
}

// Set adds or replaces a context.
func (c *Config) Set(x Context) {
	for i := range c.Contexts {
		if c.Contexts[i].Name == x.Name {
			c.Contexts[i] = x
			return
		}
	}
	c.Contexts = append(c.Contexts, x)
}

// Delete removes a context and tells whether it was there.
func (c *Config) Delete(name string) bool {
	n := len(c.Contexts)
	c.Contexts = slices.DeleteFunc(c.Contexts, func(x Context) bool { return x.Name == name })
	if c.CurrentContext == name {
		c.CurrentContext = ""
	}
	return len(c.Contexts) < n
}

// Path of the file: $XDG_CONFIG_HOME/freehold/config.yaml, or below ~/.config.
func Path(getenv func(string) string) (string, error) {
	base := getenv("XDG_CONFIG_HOME")
	if base == "" {
		home := getenv("HOME")
		if home == "" {
			return "", errors.New("neither XDG_CONFIG_HOME nor HOME is set: there is no place for the client's configuration")
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "freehold", "config.yaml"), nil
}

// Load reads the file. A missing one is an empty configuration.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Config{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the client's configuration: %w", err)
	}
	c := new(Config)
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; repair or remove it, then log in again", path, err)
	}
	return c, nil
}

// Edit changes the file in one step that no other Edit comes between. It is written whole or not at all, and
// readable by its owner only.
func Edit(path string, change func(*Config) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder of the client's configuration: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the client's configuration: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the client's configuration: %w", err)
	}
	c, err := Load(path)
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	return WriteSecret(path, data)
}

// Save adds or replaces a context in the file and makes it the current one.
func Save(path string, x Context) error {
	return Edit(path, func(c *Config) error {
		c.Set(x)
		c.CurrentContext = x.Name
		return nil
	})
}

// WriteSecret replaces a file whole, with mode 0600: a reader sees the old content or the new. A symbolic link is
// followed, not replaced.
func WriteSecret(path string, data []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data) // CreateTemp's mode is 0600
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
