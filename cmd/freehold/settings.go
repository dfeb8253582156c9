package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const envPrefix = "FREEHOLD_"

// settings of a plane. Each comes from its flag, else from FREEHOLD_<NAME>, else from the file named by --config,
// else from the flag's default.
type settings struct {
	Data           string        `koanf:"data"`
	Listen         string        `koanf:"listen"`
	TLSCert        string        `koanf:"tls-cert"`
	TLSKey         string        `koanf:"tls-key"`
	Tofu           string        `koanf:"tofu"`
	AdminPassword  string        `koanf:"admin-password"`
	ApplyDebounce  time.Duration `koanf:"apply-debounce"`
	ApplyDeadline  time.Duration `koanf:"apply-deadline"`
	ApplyParallel  int           `koanf:"apply-parallel"`
	UnreachableFor time.Duration `koanf:"unreachable-after"`
	LogLevel       string        `koanf:"log-level"`
	Machines       int           `koanf:"machines"`
	MachineTiming  string        `koanf:"machine-timing"`
}

// planeFlags are the flags that the server and its sandbox share, which differ in what they log by default.
func planeFlags(f *pflag.FlagSet, logLevel string) {
	f.String("config", "", "a YAML file with these settings by their names")
	f.String("tofu", "", "the OpenTofu 1.12.x program (default: the one on PATH, else the one that make built)")
	f.Duration("apply-debounce", 2*time.Second, "how long a tenant's declarations have to be quiet before they are applied")
	f.Duration("apply-deadline", 30*time.Minute, "how long one run of OpenTofu may take")
	f.Int("apply-parallel", 0, "how many runs of OpenTofu may go on at once (default: by the number of cores)")
	f.Duration("unreachable-after", time.Minute, "how long a machine may be away before it is not counted on any more")
	f.String("log-level", logLevel, "debug, info, warn or error")
}

func loadSettings(cmd *cobra.Command) (settings, error) {
	k := koanf.New("\x00") // names have no levels
	if path, _ := cmd.Flags().GetString("config"); path != "" {
		if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
			return settings{}, fmt.Errorf("read the configuration %s: %w", path, err)
		}
		for _, name := range k.Keys() {
			if cmd.Flags().Lookup(name) == nil || name == "config" {
				return settings{}, fmt.Errorf("%s: there is no setting %q; see freehold %s --help", path, name, cmd.Name())
			}
		}
	}
	fromEnv := env.Provider("", env.Opt{Prefix: envPrefix, TransformFunc: func(key, value string) (string, any) {
		return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(key, envPrefix), "_", "-")), value
	}})
	if err := k.Load(fromEnv, nil); err != nil {
		return settings{}, err
	}
	if err := k.Load(posflag.Provider(cmd.Flags(), "\x00", k), nil); err != nil {
		return settings{}, err
	}
	var s settings
	if err := k.Unmarshal("", &s); err != nil {
		return settings{}, fmt.Errorf("a setting has the wrong type: %w", err)
	}
	return s, s.check()
}

func (s *settings) check() error {
	switch {
	case s.Data == "":
		return errors.New("--data: a folder is needed")
	case (s.TLSCert == "") != (s.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case s.ApplyDebounce < 0 || s.ApplyDeadline <= 0 || s.UnreachableFor <= 0:
		return errors.New("--apply-debounce cannot be negative, --apply-deadline and --unreachable-after have to be positive")
	case s.ApplyParallel < 0:
		return errors.New("--apply-parallel cannot be negative")
	}
	_, err := s.logger()
	return err
}

func (s *settings) logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

func (s *settings) tls() (*tls.Config, error) {
	if s.TLSCert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("load the certificate to serve HTTPS with: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

func (s *settings) database() string  { return filepath.Join(s.Data, "freehold.db") }
func (s *settings) rootKey() string   { return filepath.Join(s.Data, "root.key") }
func (s *settings) runs() string      { return filepath.Join(s.Data, "tofu") }
func (s *settings) machines() string  { return filepath.Join(s.Data, "machines") }
func (s *settings) localNode() string { return filepath.Join(s.Data, "node") }
