package provider_test

import (
	"strings"
	"testing"

	"freehold.dev/freehold/internal/talosim"
)

func TestBootstrapDoesNotWaitForAConfigurationThatWasRefused(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	if err := machines[0].Inject(talosim.Fault{Kind: talosim.RefuseConfig, Reason: "the disk is on fire"}); err != nil {
		t.Fatal(err)
	}
	// The run would last as long as this if bootstrapping waited, and be stopped by the test's own deadline.
	c := cluster{Slots: []slot{controlPlane(machines[0])}, Create: "8h"}
	config := strings.Replace(c.config(t), "  depends_on           = [talos_machine_configuration_apply.machine]\n", "", 1)
	out, code := w.tryApply(config)
	for _, want := range []string{"refuses its configuration", "the disk is on fire", "has no configuration", "It was not waited for any longer"} {
		if code == 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, want %q: %s", code, want, out)
		}
	}
	if err := machines[0].Clear(talosim.RefuseConfig); err != nil {
		t.Fatal(err)
	}
	w.apply(config)
	wantRunning(t, machines[0])
}
