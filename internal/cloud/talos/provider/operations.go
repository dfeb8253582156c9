package provider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Values of apply_mode.
const (
	modeAuto                  = "auto"
	modeReboot                = "reboot"
	modeNoReboot              = "no_reboot"
	modeStaged                = "staged"
	modeStagedIfNeedingReboot = "staged_if_needing_reboot"
)

var applyModes = map[string]machineapi.ApplyConfigurationRequest_Mode{
	modeAuto:     machineapi.ApplyConfigurationRequest_AUTO,
	modeReboot:   machineapi.ApplyConfigurationRequest_REBOOT,
	modeNoReboot: machineapi.ApplyConfigurationRequest_NO_REBOOT,
	modeStaged:   machineapi.ApplyConfigurationRequest_STAGED,
}

// applied is what came of applying a configuration.
type applied struct {
	// mode that was used in the end.
	mode     string
	warnings []string
}

// apply delivers a configuration: to a machine in maintenance mode, or to one that belongs to the cluster already. It
// waits for a machine that is booting.
func (m *machine) apply(ctx context.Context, limit time.Duration, config []byte, mode string) (result applied, err error) {
	var patience repeats
	err = attempts(ctx, limit, func(ctx context.Context) error {
		return patience.judge(m.reach(ctx, func(ctx context.Context, as sighting, c *client.Client) (err error) {
			result, err = applyOnce(ctx, c, as, config, mode)
			return err
		}))
	})
	return result, err
}

func applyOnce(ctx context.Context, c *client.Client, as sighting, config []byte, mode string) (applied, error) {
	request := &machineapi.ApplyConfigurationRequest{Data: config}
	used := mode
	switch {
	case as == maintenance:
		// Nothing runs that a mode could spare; maintenance mode knows these two.
		used = modeAuto
		if mode == modeReboot {
			used = modeReboot
		}
	case mode == modeStagedIfNeedingReboot:
		request.DryRun, request.Mode = true, machineapi.ApplyConfigurationRequest_AUTO
		resp, err := c.ApplyConfiguration(ctx, request)
		if err != nil {
			return applied{}, err
		}
		request.DryRun, used = false, modeAuto
		for _, message := range resp.GetMessages() {
			if message.GetMode() == machineapi.ApplyConfigurationRequest_REBOOT {
				used = modeStaged
			}
		}
	}
	request.Mode = applyModes[used]
	resp, err := c.ApplyConfiguration(ctx, request)
	if err != nil {
		return applied{}, err
	}
	result := applied{mode: mode}
	if mode == modeStagedIfNeedingReboot {
		result.mode = used
	}
	for _, message := range resp.GetMessages() {
		result.warnings = append(result.warnings, message.GetWarnings()...)
	}
	return result, nil
}

// bootstrap makes the machine the first member of its cluster's etcd, or finds that this was done before. It does not
// wait for a configuration that was not taken.
func (m *machine) bootstrap(ctx context.Context, limit time.Duration, failed *unconfigured) error {
	var patience repeats
	return attempts(ctx, limit, func(ctx context.Context) error {
		err := m.reach(ctx, func(ctx context.Context, as sighting, c *client.Client) error {
			if as == maintenance {
				return errMaintenance
			}
			return c.Bootstrap(ctx, &machineapi.BootstrapRequest{})
		})
		switch {
		case status.Code(err) == codes.AlreadyExists:
			return nil
		case status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "control plane"):
			return final{err}
		case errors.Is(err, errMaintenance) && failed.has(m):
			return patience.judge(errUnconfigured)
		}
		return patience.judge(err)
	})
}

// kubeconfig asks the machine for an administrator's kubeconfig.
func (m *machine) kubeconfig(ctx context.Context, limit time.Duration) (text []byte, err error) {
	var patience repeats
	err = attempts(ctx, limit, func(ctx context.Context) error {
		return patience.judge(m.reach(ctx, func(ctx context.Context, as sighting, c *client.Client) (err error) {
			if as == maintenance {
				return errMaintenance
			}
			text, err = c.Kubeconfig(ctx)
			return err
		}))
	})
	return text, err
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// errResetting: the machine took the reset and is not through with it.
var errResetting = errors.New("the machine is still resetting itself")

// reset wipes what the machine knows of its cluster, and returns when that is done: with reboot, when the machine is back in
// maintenance mode; without, when it is off. A machine that is in maintenance mode already needs nothing. errForeign
// comes back for one that has become another cluster's.
func (m *machine) reset(ctx context.Context, limit time.Duration, graceful, reboot bool) error {
	var (
		patience repeats
		asked    bool
		bootID   string
		silent   int
	)
	return attempts(ctx, limit, func(ctx context.Context) error {
		answered := false
		err := m.reach(ctx, func(ctx context.Context, as sighting, c *client.Client) error {
			answered = true
			if as == maintenance {
				return nil
			}
			now, err := readBootID(ctx, c)
			if err != nil {
				return err
			}
			if asked && now == bootID {
				return errResetting
			}
			// It came back with its configuration: whatever kept it from resetting itself, ask again.
			asked, bootID = false, now
			if err := resetOnce(ctx, c, graceful, reboot); err != nil {
				return err
			}
			asked = true
			return errResetting
		})
		switch {
		case err == nil || errors.Is(err, errResetting) || errors.Is(err, errForeign):
			silent = 0
		case asked && !reboot && !answered:
			if silent++; silent >= sureAfter {
				return nil
			}
		case asked:
			return err
		}
		return patience.judge(err)
	})
}

func resetOnce(ctx context.Context, c *client.Client, graceful, reboot bool) error {
	wipe := func(label string) *machineapi.ResetPartitionSpec {
		return &machineapi.ResetPartitionSpec{Label: label, Wipe: true}
	}
	return c.ResetGeneric(ctx, &machineapi.ResetRequest{
		Graceful:               graceful,
		Reboot:                 reboot,
		SystemPartitionsToWipe: []*machineapi.ResetPartitionSpec{wipe(constants.StatePartitionLabel), wipe(constants.EphemeralPartitionLabel)},
	})
}

func readBootID(ctx context.Context, c *client.Client) (string, error) {
	r, err := c.Read(ctx, bootIDPath)
	if err != nil {
		return "", err
	}
	defer r.Close() //nolint:errcheck
	text, err := io.ReadAll(io.LimitReader(r, 128))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
