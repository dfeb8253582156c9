package talosim

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// machineService is Talos' machine API.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer
}

// ApplyConfiguration implements the machine API.
func (*machineService) ApplyConfiguration(ctx context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	c := callFrom(ctx)
	if c.maintenance() {
		return c.s.applyMaintenance(ctx, in)
	}
	return c.s.apply(ctx, in)
}

// apply changes the config of a machine that has one.
func (s *session) apply(ctx context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	invalid := func(err error) error { return status.Error(codes.InvalidArgument, err.Error()) }
	cfg, err := configloader.NewFromBytes(in.GetData())
	if err != nil {
		return nil, invalid(err)
	}
	if cfg.RawV1Alpha1() == nil {
		return nil, invalid(errors.New("the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?"))
	}
	mode := metal{installed: true}
	warnings, err := cfg.Validate(mode)
	if err != nil {
		return nil, invalid(err)
	}
	more, err := cfg.RuntimeValidate(ctx, s.res, mode)
	if err != nil {
		return nil, invalid(err)
	}
	if f, refuse := s.m.fault(RefuseConfig); refuse {
		return nil, invalid(errors.New(f.Reason))
	}
	current, _ := s.config()
	decided, details, err := decideMode(in.Mode, current, cfg)
	if err != nil {
		return nil, invalid(err)
	}
	if in.DryRun {
		diff, err := configdiff.DiffConfigs(current, cfg)
		if err != nil {
			return nil, fmt.Errorf("failed to generate diff: %w", err)
		}
		if diff == "" {
			diff = "No changes."
		}
		return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{
			Mode:        decided,
			ModeDetails: fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\nConfig diff:\n\n%s", details, diff),
		}}}, nil
	}
	data, err := cfg.Bytes()
	if err != nil {
		return nil, err
	}
	s.cancelRollback()
	switch decided {
	case machineapi.ApplyConfigurationRequest_TRY:
		timeout := constants.ConfigTryTimeout
		if in.TryModeTimeout != nil {
			timeout = in.TryModeTimeout.AsDuration()
		}
		details += fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", timeout)
		s.activate(cfg)
		s.rollbackAfter(timeout, current)
	case machineapi.ApplyConfigurationRequest_NO_REBOOT:
		s.persist(data)
		s.activate(cfg)
	case machineapi.ApplyConfigurationRequest_STAGED:
		s.persist(data)
	case machineapi.ApplyConfigurationRequest_REBOOT:
		if err := s.m.submit(command{kind: commandReboot, actor: newActor()}); err != nil {
			return nil, err
		}
		s.persist(data)
	}
	s.m.countApply()
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{{
		Mode: decided, Warnings: slices.Concat(warnings, more), ModeDetails: details,
	}}}, nil
}

// decideMode turns the asked mode into the one that happens.
func decideMode(asked machineapi.ApplyConfigurationRequest_Mode, current, next config.Provider) (machineapi.ApplyConfigurationRequest_Mode, string, error) {
	const reboot, live = "Applied configuration with a reboot", "Applied configuration without a reboot"
	switch asked {
	case machineapi.ApplyConfigurationRequest_TRY, machineapi.ApplyConfigurationRequest_NO_REBOOT:
		if why := rebootReason(current, next); why != "" {
			return asked, "", errors.New(why)
		}
		return asked, live, nil
	case machineapi.ApplyConfigurationRequest_STAGED:
		return asked, "Staged configuration to be applied after the next reboot", nil
	case machineapi.ApplyConfigurationRequest_REBOOT:
		return asked, reboot, nil
	case machineapi.ApplyConfigurationRequest_AUTO:
		if why := rebootReason(current, next); why != "" {
			return machineapi.ApplyConfigurationRequest_REBOOT, reboot + ": " + why, nil
		}
		return machineapi.ApplyConfigurationRequest_NO_REBOOT, live, nil
	}
	return asked, "", fmt.Errorf("incorrect mode '%s' specified for the apply config call", asked)
}

// Fields of .machine, and of .machine.features, that Talos changes in place; .debug and all of .cluster are too.
var (
	liveMachineFields = []string{
		"MachineCA", "MachineAcceptedCAs", "MachineTime", "MachineCertSANs", "MachineInstall", "MachineNetwork", "MachineSysfs",
		"MachineSysctls", "MachineLogging", "MachineControlPlane", "MachineKubelet", "MachineKernel", "MachineRegistries",
		"MachinePods", "MachineSeccompProfiles", "MachineNodeAnnotations", "MachineNodeLabels", "MachineNodeTaints",
	}
	liveFeatureFields = []string{
		"KubernetesTalosAPIAccessConfig", "KubePrismSupport", "HostDNSSupport", "ImageCacheSupport", "FeatureNodeAddressSortAlgorithm",
	}
)

// rebootReason tells in which ways a config differs from the current one that cannot be changed in place; empty when
// there are none. Documents beside v1alpha1 always can.
func rebootReason(current, next config.Provider) string {
	a, b := current.RawV1Alpha1(), next.RawV1Alpha1()
	if a == nil || b == nil {
		return "current config is not v1alpha1"
	}
	b = b.DeepCopy()
	b.ConfigDebug, b.ClusterConfig = a.ConfigDebug, a.ClusterConfig
	if a.MachineConfig != nil && b.MachineConfig != nil {
		copyFields(b.MachineConfig, a.MachineConfig, liveMachineFields)
		if a.MachineConfig.MachineFeatures != nil && b.MachineConfig.MachineFeatures != nil {
			copyFields(b.MachineConfig.MachineFeatures, a.MachineConfig.MachineFeatures, liveFeatureFields)
		}
	}
	if reflect.DeepEqual(a, b) {
		return ""
	}
	diff, err := configdiff.DiffConfigs(container.NewV1Alpha1(a), container.NewV1Alpha1(b))
	if err != nil {
		return fmt.Sprintf("error calculating diff: %s", err)
	}
	return "this config change can't be applied in immediate mode\ndiff:\n" + diff
}

func copyFields(to, from any, names []string) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for _, n := range names {
		t.FieldByName(n).Set(f.FieldByName(n))
	}
}

func (s *session) persist(data []byte) {
	s.m.mu.Lock()
	if s.m.rec.Disk != nil {
		s.m.rec.Disk.Config = data
	}
	s.m.mu.Unlock()
	s.m.saveLogged()
	s.putConfig()
}

// activate puts a config in force.
func (s *session) activate(cfg config.Provider) {
	s.m.mu.Lock()
	s.cfg = cfg
	s.cfgRev++
	s.hostname = hostnameOf(cfg, s.nodeID)
	s.m.mu.Unlock()
	s.putConfig()
	s.m.changed()
}

func (s *session) rollbackAfter(d time.Duration, to config.Provider) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.rollback = time.AfterFunc(d, func() {
		if s.ctx.Err() == nil {
			s.activate(to)
		}
	})
}

func (s *session) cancelRollback() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.rollback != nil {
		s.rollback.Stop()
		s.rollback = nil
	}
}
