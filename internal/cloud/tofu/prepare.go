package tofu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// cliConfig is the OpenTofu CLI configuration of every run.
const cliConfig = "disable_checkpoint = true\n"

// bareBackend is a configuration that has a state backend and nothing else.
const bareBackend = `{"terraform":{"backend":{"http":{}}}}`

// Prepare makes the folders below root (mode 0700) and a template: a working folder that is initialised for the bare
// http backend. States are pulled in it, and tenants' folders that need no provider from elsewhere start as a copy.
func Prepare(ctx context.Context, root string, b Binary) (template string, err error) {
	template = filepath.Join(root, "template-"+b.Version)
	if err := os.MkdirAll(template, 0o700); err != nil {
		return "", err
	}
	// Not written without need: a server whose disk is full can start, and answer what it knows.
	rc := filepath.Join(root, "tofurc")
	if there, err := os.ReadFile(rc); err != nil || string(there) != cliConfig {
		if err := writeFile(rc, []byte(cliConfig)); err != nil {
			return "", err
		}
	}
	if initialised(template) {
		return template, nil
	}
	// What init left when it was cut off, by a full disk for one, would be taken for done.
	if err := os.RemoveAll(filepath.Dir(backendFile(template))); err != nil {
		return "", err
	}
	if err := writeFile(filepath.Join(template, "main.tf.json"), []byte(bareBackend)); err != nil {
		return "", err
	}
	// init looks for a state; there is none.
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	empty := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	go func() { _ = empty.Serve(l) }()
	defer empty.Close() //nolint:errcheck // nothing of it is left to lose
	cmd := exec.CommandContext(ctx, b.Path, "init", "-input=false", "-no-color")
	cmd.Dir = template
	cmd.Env = environment{CLIConfig: rc, Backend: "http://" + l.Addr().String(), Passphrase: "no state is read here"}.list()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("tofu init in %s: %w: %s", template, err, bytes.TrimSpace(out))
	}
	made, err := os.ReadFile(backendFile(template))
	if err != nil {
		return "", fmt.Errorf("tofu init in %s: %w", template, err)
	}
	// Written again durably: no power loss leaves it by half.
	if err := writeFile(backendFile(template), made); err != nil {
		return "", err
	}
	return template, private(template)
}

// initialised tells whether init has written all of the template's backend.
func initialised(template string) bool {
	raw, err := os.ReadFile(backendFile(template))
	var v struct {
		Backend struct {
			Type string `json:"type"`
		} `json:"backend"`
	}
	return err == nil && json.Unmarshal(raw, &v) == nil && v.Backend.Type == "http"
}

// private takes everybody else's rights away from what tofu made.
func private(folder string) error {
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Chmod(path, 0o700)
		case d.Type().IsRegular():
			return os.Chmod(path, 0o600)
		}
		return nil
	})
}

func backendFile(work string) string { return filepath.Join(work, ".terraform", "terraform.tfstate") }

func rcFile(template string) string { return filepath.Join(filepath.Dir(template), "tofurc") }

// needs is what a configuration asks "tofu init" for.
type needs struct {
	Terraform struct {
		Required map[string]struct {
			Source  string `json:"source"`
			Version string `json:"version"`
		} `json:"required_providers"`
	} `json:"terraform"`
}

// foreign tells whether the configuration needs a provider that we do not serve.
func (n needs) foreign(providers Providers) bool {
	for _, r := range n.Terraform.Required {
		if _, ours := providers[SourceAddress(r.Source)]; !ours {
			return true
		}
	}
	return false
}

// initialise makes the working folder ready for the configuration, unless it is already.
func (s *supervisor) initialise(ctx context.Context, config []byte) error {
	var n needs
	if err := json.Unmarshal(config, &n); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if !n.foreign(s.providers) {
		return s.copyTemplate()
	}
	raw, err := json.Marshal(n)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(append(raw, s.req.Template...))
	want := hex.EncodeToString(sum[:])
	marker := filepath.Join(s.folder.work(), ".terraform", "freehold-ready")
	if have, err := os.ReadFile(marker); err == nil && string(have) == want {
		return nil
	}
	if _, err := s.tofu(ctx, nil, "init", "-input=false", "-no-color"); err != nil {
		return err
	}
	return writeFile(marker, []byte(want))
}

// copyTemplate initialises a folder that needs a backend and no provider: init would write the same.
func (s *supervisor) copyTemplate() error {
	want, err := os.ReadFile(backendFile(s.req.Template))
	if err != nil {
		return fmt.Errorf("the template folder is not there: %w", err)
	}
	file := backendFile(s.folder.work())
	if have, err := os.ReadFile(file); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.folder.work(), ".terraform.lock.hcl")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return replaceFile(file, want)
}

// SourceAddress completes a provider's source address with OpenTofu's default host and namespace.
func SourceAddress(source string) string {
	switch bytes.Count([]byte(source), []byte("/")) {
	case 0:
		return "registry.opentofu.org/hashicorp/" + source
	case 1:
		return "registry.opentofu.org/" + source
	}
	return source
}
