package talosim

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maintain opens the maintenance API: there is no config yet.
func (s *session) maintain() {
	s.putHardware()
	s.putNetwork(s.hostname)
	for _, id := range []string{"machined", "auditd", "syslogd", "udevd", "containerd", "dashboard"} {
		s.runService(id)
	}
	s.setStage(runtime.MachineStageMaintenance)
	tlsConfig, err := maintenanceTLS(s.m)
	if err == nil {
		err = s.openAPI(tlsConfig)
	}
	if err != nil {
		s.m.log.Error("cannot open the simulated maintenance API", "error", err)
		return
	}
	s.logf("machined", "this machine is reachable at: %s", s.m.addr)
	s.logf("machined", "upload configuration using talosctl: talosctl apply-config --insecure --nodes %s --file <config.yaml>", s.m.addr)
}

// metal is the runtime mode of simulated machines, as far as validation asks.
type metal struct{ installed bool }

func (metal) String() string          { return "metal" }
func (m metal) RequiresInstall() bool { return !m.installed }
func (metal) InContainer() bool       { return false }

// applyMaintenance takes a machine's first config.
func (s *session) applyMaintenance(ctx context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	switch in.Mode {
	case machineapi.ApplyConfigurationRequest_TRY, machineapi.ApplyConfigurationRequest_REBOOT, machineapi.ApplyConfigurationRequest_AUTO:
	default:
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode",
			strings.ReplaceAll(strings.ToLower(in.Mode.String()), "_", "-"))
	}
	cfg, err := configloader.NewFromBytes(in.GetData())
	if err != nil {
		return nil, fmt.Errorf("failed to parse config: %w", err)
	}
	mode := metal{}
	warnings, err := cfg.Validate(mode)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	}
	more, err := cfg.RuntimeValidate(ctx, s.res, mode)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "runtime configuration validation failed: %s", err)
	}
	if f, refuse := s.m.fault(RefuseConfig); refuse {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", f.Reason)
	}
	if cfg.RawV1Alpha1() == nil {
		// Talos waits for the rest of the config then; there is nothing that would bring it here.
		return nil, status.Error(codes.InvalidArgument, "configuration validation failed: the v1alpha1 document is missing")
	}
	reply := &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{Warnings: slices.Concat(warnings, more)}}}
	if in.DryRun {
		reply.Messages[0].ModeDetails = "Dry run summary:\nNode is running in maintenance mode and does not have a config yet."
		return reply, nil
	}
	data, err := cfg.Bytes()
	if err != nil {
		return nil, err
	}
	s.m.mu.Lock()
	v := s.m.rec.TalosVersion
	s.m.mu.Unlock()
	if tag, ok := imageTag(cfg.Machine().Install().Image()); ok {
		v = tag
	}
	if err := s.m.submit(command{kind: commandInstall, config: data, version: v}); err != nil {
		return nil, err
	}
	s.m.countApply()
	return reply, nil
}

func (m *Machine) countApply() {
	m.mu.Lock()
	m.rec.Applies++
	m.mu.Unlock()
	m.saveLogged()
}

// imageTag is the version of an installer image.
func imageTag(ref string) (string, bool) {
	ref, _, _ = strings.Cut(ref, "@")
	i := strings.LastIndex(ref, ":")
	if i < 0 || !strings.HasPrefix(ref[i+1:], "v") || strings.Contains(ref[i:], "/") {
		return "", false
	}
	return ref[i+1:], true
}

func maintenanceHostname(r *record) string { return stableHostname(r.UUID) }

// stableHostname is the name of a machine whose config names none.
func stableHostname(seed string) string {
	sum := sha256.Sum256([]byte(seed))
	h := hex.EncodeToString(sum[:])
	return "talos-" + h[:3] + "-" + h[3:6]
}

// hostnameOf is the name that a config gives to a machine with a discovery identity.
func hostnameOf(cfg config.Provider, nodeID string) string {
	if h := cfg.NetworkHostnameConfig(); h != nil && h.Hostname() != "" {
		return h.Hostname()
	}
	return stableHostname(nodeID)
}

func newNodeID() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}
