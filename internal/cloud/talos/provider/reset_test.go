package provider_test

import (
	"crypto/tls"
	"testing"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"freehold.dev/freehold/internal/talosim"
)

// resetBehindOurBack resets a machine as its owner would with talosctl. The CA's key comes from the cluster's control
// plane, so a worker's is looked up among the others.
func resetBehindOurBack(t *testing.T, m *talosim.Machine, controlPlanes ...*talosim.Machine) {
	t.Helper()
	from := m
	if len(controlPlanes) > 0 {
		from = controlPlanes[0]
	}
	cfg, err := configloader.NewFromBytes(from.Config())
	if err != nil {
		t.Fatal(err)
	}
	bundle := secrets.NewBundleFromConfig(secrets.NewClock(), cfg)
	pair, err := bundle.GenerateTalosAPIClientCertificate(role.MakeSet(role.Admin))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Crt, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(t.Context(), client.WithEndpoints(m.Address().String()),
		client.WithTLSConfig(&tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ResetGeneric(t.Context(), &machineapi.ResetRequest{Reboot: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the machine is reset", func() bool { return m.State().Stage == "maintenance" })
}
