package provider_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"freehold.dev/freehold/internal/talosim"
)

func TestAMachineThatDoesNotAnswerIsNamedAndHoldsUpNoOther(t *testing.T) {
	for _, fault := range []talosim.FaultKind{talosim.NetworkRefuse, talosim.NetworkHang} {
		t.Run(string(fault), func(t *testing.T) {
			if fault == talosim.NetworkRefuse {
				deep(t)
			}
			w := reattached(t)
			machines := simulate(t, 3)
			if err := machines[2].Inject(talosim.Fault{Kind: fault}); err != nil {
				t.Fatal(err)
			}
			c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1]), worker(1, machines[2])}}
			// A busy computer may need longer to get at the machines that answer.
			for patience := 2 * time.Second; applies(machines[0])[0] == 0 || applies(machines[1])[0] == 0; patience *= 2 {
				if patience > time.Minute {
					t.Fatal("a silent machine holds up the others")
				}
				c.Create = patience.String()
				out, code := w.tryApply(c.config(t))
				for _, want := range []string{machines[2].Address().String() + " cannot be reached", ":50000", "Check that", "timeouts"} {
					if code == 0 || !strings.Contains(out, want) {
						t.Errorf("exit code %d, want %q: %s", code, want, out)
					}
				}
			}
			eventually(t, "the other machines are configured", func() bool {
				return machines[0].State().Installed && machines[1].State().Installed
			})

			// When it is back, the same apply completes the rest, and only that.
			before := applies(machines[:2]...)
			if err := machines[2].Clear(fault); err != nil {
				t.Fatal(err)
			}
			c.Create = ""
			w.apply(c.config(t))
			wantRunning(t, machines...)
			if diff := cmp.Diff(before, applies(machines[:2]...)); diff != "" {
				t.Errorf("applies: %s", diff)
			}
			w.wantNoChanges()
		})
	}
}

func TestASlowMachineIsWaitedFor(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	if err := machines[0].Inject(talosim.Fault{Kind: talosim.SlowBoot, Delay: 1500 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	machines[0].PowerCycle()
	w.apply(cluster{Slots: []slot{controlPlane(machines[0])}}.config(t))
	wantRunning(t, machines[0])
}

func TestARefusedConfigurationShowsTheMachinesWordsWithoutSecrets(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 1)
	c := cluster{Slots: []slot{controlPlane(machines[0])}}
	w.write(c.config(t))
	w.run("apply", "-auto-approve", "-no-color", "-target=talos_machine_secrets.this")
	var secrets struct {
		TrustdInfo struct{ Token string }
	}
	if err := json.Unmarshal(w.attribute("talos_machine_secrets", "machine_secrets"), &secrets); err != nil {
		t.Fatal(err)
	}
	token := secrets.TrustdInfo.Token
	if err := machines[0].Inject(talosim.Fault{Kind: talosim.RefuseConfig, Reason: "the disk /dev/sda is too small for token " + token}); err != nil {
		t.Fatal(err)
	}
	out, code := w.tryApply(c.config(t))
	if code == 0 || !strings.Contains(out, machines[0].Address().String()+" refuses its configuration") || !strings.Contains(out, "/dev/sda is too small") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if strings.Contains(out, token) {
		t.Error("a secret is in the diagnostic")
	}
	if err := machines[0].Clear(talosim.RefuseConfig); err != nil {
		t.Fatal(err)
	}
	w.apply(c.config(t))
	wantRunning(t, machines[0])
}

func TestAnotherClustersMachineIsLeftAlone(t *testing.T) {
	machines := simulate(t, 2)
	theirs := reattached(t)
	theirs.apply(cluster{Name: "theirs", Slots: []slot{controlPlane(machines[0])}}.config(t))
	wantRunning(t, machines[0])
	config := machines[0].Config()

	w := reattached(t)
	c := cluster{Slots: []slot{controlPlane(machines[1]), worker(0, machines[0])}}
	out, code := w.tryApply(c.config(t))
	if code == 0 || !strings.Contains(out, machines[0].Address().String()+" belongs to another cluster") || !strings.Contains(out, "reset it first") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if diff := cmp.Diff(config, machines[0].Config()); diff != "" {
		t.Error("the other cluster's machine was changed")
	}

	// Once it is free, it is taken; and once it is theirs again, destroying ours does not reset it.
	theirs.run("destroy", "-auto-approve", "-no-color")
	w.apply(c.config(t))
	wantRunning(t, machines...)
	resetBehindOurBack(t, machines[0], machines[1])
	theirs.apply(cluster{Name: "theirs", Slots: []slot{controlPlane(machines[0])}}.config(t))
	wantRunning(t, machines[0])
	out = w.run("destroy", "-auto-approve", "-no-color")
	if !strings.Contains(out, "belongs to another cluster now") {
		t.Errorf("nobody was told: %s", out)
	}
	if s := machines[0].State(); s.Stage != "running" || s.ClusterName != "theirs" {
		t.Errorf("the other cluster's machine was reset: %+v", s)
	}
	wantReset(t, machines[1])
}

func TestDestroyOfAMachineThatIsGoneGivesUpAndSaysSo(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 2)
	c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1])}, Delete: "1s"}
	w.apply(c.config(t))
	wantRunning(t, machines...)
	machines[1].PowerOff()
	c.Slots = c.Slots[:1]
	out, code := w.tryApply(c.config(t))
	if code == 0 || !strings.Contains(out, machines[1].Address().String()+" cannot be reached") || !strings.Contains(out, "tofu state rm") {
		t.Errorf("exit code %d: %s", code, out)
	}
	machines[1].PowerOn()
	eventually(t, "the machine is back", func() bool { return machines[1].State().Stage == "running" })
	// One that answers is reset, given the time that it takes.
	c.Slots, c.Delete = append(c.Slots, worker(0, machines[1])), ""
	w.apply(c.config(t))
	c.Slots = c.Slots[:1]
	w.apply(c.config(t))
	wantReset(t, machines[1])
}

func TestAnInterruptedApplyEndsSoonAndCanBeContinued(t *testing.T) {
	w := reattached(t)
	machines := simulate(t, 2)
	machines[1].PowerOff()
	c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1])}, Create: "10m"}
	w.write(c.config(t))
	cmd := w.command("apply", "-auto-approve", "-no-color", "-input=false")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one machine is configured", func() bool { return machines[0].State().Applies > 0 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("an interrupted apply succeeded")
	}
	if text := flat(out.String()); !strings.Contains(text, "Interrupted at "+machines[1].Address().String()) {
		t.Errorf("output: %s", text)
	}
	machines[1].PowerOn()
	w.apply(c.config(t))
	wantRunning(t, machines...)
	w.wantNoChanges()
}

func TestAnApplyThatWasKilledIsContinued(t *testing.T) {
	for moment, reached := range map[string]func(*talosim.Machine) bool{
		"before the machine is configured": func(m *talosim.Machine) bool { return m.State().Stage == "maintenance" },
		"when it is configured":            func(m *talosim.Machine) bool { return m.State().Applies > 0 },
		"when it is installed":             func(m *talosim.Machine) bool { return m.State().Installed },
		"when it is bootstrapped":          func(m *talosim.Machine) bool { return m.State().EtcdMember != "" },
	} {
		t.Run(moment, func(t *testing.T) {
			if moment != "when it is installed" {
				deep(t)
			}
			w := mirrored(t)
			machines := simulate(t, 2)
			c := cluster{Slots: []slot{controlPlane(machines[0]), worker(0, machines[1])}}
			w.write(c.config(t))
			// The secrets are in the state already: those that are lost with it could never be had again.
			w.run("apply", "-auto-approve", "-no-color", "-target=talos_machine_secrets.this")
			cmd := w.command("apply", "-auto-approve", "-no-color", "-input=false")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, moment, func() bool { return reached(machines[0]) })
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			w.apply(c.config(t))
			wantRunning(t, machines...)
			w.wantNoChanges()
			w.run("destroy", "-auto-approve", "-no-color")
			wantReset(t, machines...)
		})
	}
}
