package machineapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"

	"freehold.dev/freehold/internal/cloud"
)

// ConfigDigest is a digest of what a machine configuration says: comments, order of keys and spelling do not
// count. It tells nothing about the secrets inside.
func ConfigDigest(text []byte) (string, error) {
	p, err := configloader.NewFromBytes(text)
	if err != nil {
		return "", fmt.Errorf("read the machine configuration: %w", err)
	}
	return digest(p)
}

func digest(p interface {
	EncodeBytes(...encoder.Option) ([]byte, error)
}) (string, error) {
	canonical, err := p.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return "", fmt.Errorf("encode the machine configuration: %w", err)
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:]), nil
}

func configMetadata() resource.Metadata {
	return resource.NewMetadata(configres.NamespaceName, configres.MachineConfigType, configres.ActiveID, resource.VersionUndefined)
}

func (c *Client) readConfig(ctx context.Context, o *Observation) error {
	res, err := safe.StateGetByID[*configres.MachineConfig](ctx, c.cosi, configres.ActiveID)
	if err != nil {
		return err
	}
	if o.ConfigDigest, err = digest(res.Provider()); err != nil {
		return err
	}
	cfg := res.Config()
	if cfg.Machine() == nil {
		return nil
	}
	o.Role = cloud.RoleWorker
	if t := cfg.Machine().Type(); t == machine.TypeControlPlane || t == machine.TypeInit {
		o.Role = cloud.RoleControlPlane
	}
	o.KubernetesVersion = imageVersion(cfg.Machine().Kubelet().Image())
	return nil
}

// imageVersion is the tag of an image reference, without "v".
func imageVersion(image string) string {
	image, _, _ = strings.Cut(image, "@")
	_, tag, ok := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	if !ok {
		return ""
	}
	return strings.TrimPrefix(tag, "v")
}
