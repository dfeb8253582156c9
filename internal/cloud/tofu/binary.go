package tofu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Version that Freehold builds when the machine has none that fits, and Series that it works with.
const (
	Version = "1.12.6"
	Series  = "1.12."
)

// Binary is an OpenTofu program.
type Binary struct {
	Path    string
	Version string
}

// Find answers the OpenTofu program to use: the explicit one if given (any failure is an error then), else the one on
// PATH if it is of Series, else the cached build. ErrNoTofu tells what to do.
func Find(ctx context.Context, explicit string) (Binary, error) {
	if explicit != "" {
		b, err := inspect(ctx, explicit)
		if err == nil && !strings.HasPrefix(b.Version, Series) {
			err = fmt.Errorf("it is version %s", b.Version)
		}
		if err != nil {
			return Binary{}, fmt.Errorf("%w: %s has to be OpenTofu %sx: %w", ErrNoTofu, explicit, Series, err)
		}
		return b, nil
	}
	var tried []string
	candidates := []string{CachedPath()}
	if p, err := exec.LookPath("tofu"); err == nil {
		candidates = []string{p, CachedPath()}
	}
	for _, p := range candidates {
		b, err := inspect(ctx, p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			tried = append(tried, p+" is not there")
		case err != nil:
			tried = append(tried, fmt.Sprintf("%s does not run: %v", p, err))
		case !strings.HasPrefix(b.Version, Series):
			tried = append(tried, fmt.Sprintf("%s is version %s", p, b.Version))
		default:
			return b, nil
		}
	}
	return Binary{}, fmt.Errorf("%w %sx (%s): run \"make tofu\", or name one with FREEHOLD_TOFU", ErrNoTofu, Series, strings.Join(tried, "; "))
}

// CachedPath is where the build of [Version] is kept.
func CachedPath() string {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "freehold", "tofu-"+Version, "tofu")
}

func inspect(ctx context.Context, path string) (Binary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return Binary{}, err
	}
	cmd := exec.CommandContext(ctx, path, "version", "-json")
	cmd.Env = append(baseEnv(), "TF_CLI_CONFIG_FILE="+os.DevNull)
	out, err := cmd.Output()
	if err != nil {
		return Binary{}, fmt.Errorf("%s version: %w", path, err)
	}
	var v struct {
		Version string `json:"terraform_version"`
	}
	if err := json.Unmarshal(out, &v); err != nil || v.Version == "" {
		return Binary{}, fmt.Errorf("%s version: its answer is not OpenTofu's", path)
	}
	return Binary{Path: path, Version: v.Version}, nil
}
