package talosim_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	cx509 "github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"k8s.io/client-go/kubernetes"

	"freehold.dev/freehold/internal/talosim"
)

func clientTLS(t *testing.T, te *tenant, pem *cx509.PEMEncodedCertificateAndKey) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(pem.Crt, pem.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(te.input.Options.SecretsBundle.Certs.OS.Crt)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}}
}

func dialTalos(addr netip.Addr) (net.Conn, error) {
	return net.DialTimeout("tcp", fmt.Sprintf("%s:%d", addr, talosim.TalosPort), deadline)
}

func readyz(t *testing.T, cs *kubernetes.Clientset) error {
	return cs.Discovery().RESTClient().Get().AbsPath("/readyz").Do(short(t)).Error()
}

func TestRefusedNetworkCutsConnectionsAndComesBack(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if err := m.Inject(talosim.Fault{Kind: talosim.NetworkRefuse}); err != nil {
		t.Fatal(err)
	}
	if _, err := dialTalos(m.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want it refused", err)
	}
	if _, err := stage(t, c); client.StatusCode(err) != codes.Unavailable {
		t.Errorf("call: %v, want Unavailable", err)
	}
	if err := m.Clear(""); err != nil {
		t.Fatal(err)
	}
	waitStage(t, c, runtime.MachineStageMaintenance, true)
}

func TestHangingNetworkAnswersNothingAndComesBack(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	c := insecure(t, m.Address())
	waitStage(t, c, runtime.MachineStageMaintenance, true)
	if err := m.Inject(talosim.Fault{Kind: talosim.NetworkHang}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Disks(ctx); client.StatusCode(err) != codes.DeadlineExceeded {
		t.Errorf("call: %v, want DeadlineExceeded", err)
	}
	if err := m.Clear(talosim.NetworkHang); err != nil {
		t.Fatal(err)
	}
	waitStage(t, c, runtime.MachineStageMaintenance, true)
}

func TestQuorumIsLostAndComesBackWithTheMembers(t *testing.T) {
	sim := newSim(t, "")
	machines := addMachines(t, sim, 3)
	te := form(t, machines, 3)
	c := te.dial(t, machines[0].Address())
	kc, err := c.Kubeconfig(short(t))
	if err != nil {
		t.Fatal(err)
	}
	cs := clientset(t, kc)
	eventually(t, "readyz", func() error { return readyz(t, cs) })
	machines[1].Inject(talosim.Fault{Kind: talosim.NetworkRefuse})
	if err := readyz(t, cs); err != nil {
		t.Errorf("readyz with two members of three: %v", err)
	}
	machines[2].PowerOff()
	eventually(t, "readyz fails without quorum", func() error {
		if readyz(t, cs) == nil {
			return errors.New("it is ready")
		}
		return nil
	})
	if _, err := c.EtcdMemberList(short(t), &machineapi.EtcdMemberListRequest{}); err == nil {
		t.Error("the member list is answered without quorum")
	}
	waitStage(t, c, runtime.MachineStageRunning, false)
	machines[1].Clear("")
	machines[2].PowerOn()
	eventually(t, "readyz with quorum", func() error { return readyz(t, cs) })
	r, err := c.EtcdMemberList(short(t), &machineapi.EtcdMemberListRequest{})
	if err != nil || len(r.Messages[0].Members) != 3 {
		t.Errorf("members: %v, %v", r, err)
	}
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestLastMemberCannotLeaveEtcd(t *testing.T) {
	m, te, c, _ := single(t)
	if err := c.EtcdLeaveCluster(short(t), &machineapi.EtcdLeaveClusterRequest{}); err == nil || !strings.Contains(err.Error(), "not enough started members") {
		t.Errorf("leave: %v", err)
	}
	if err := c.Reset(short(t), true, true); err != nil {
		t.Fatal(err)
	}
	waitStage(t, te.dial(t, m.Address()), runtime.MachineStageRunning, true)
	if m.State().Resets != 0 {
		t.Error("the graceful reset of the last member wiped it")
	}
	// Without grace it is wiped, and the cluster's data with it: the same config can be bootstrapped anew.
	data := m.Config()
	eventually(t, "reset", func() error { return c.Reset(short(t), false, true) })
	applyMaintenance(t, m, data)
	eventually(t, "bootstrap", func() error { return c.Bootstrap(short(t), bootstrapRequest()) })
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestCrashLoopBootsAgainAndAgain(t *testing.T) {
	m, _, c, _ := single(t)
	boots := m.State().Boots
	m.Inject(talosim.Fault{Kind: talosim.CrashLoop})
	eventually(t, "three more boots", func() error {
		if n := m.State().Boots; n < boots+3 {
			return fmt.Errorf("%d boots", n)
		}
		return nil
	})
	m.Clear(talosim.CrashLoop)
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestSlowBootKeepsThePortClosed(t *testing.T) {
	m, _, c, _ := single(t)
	m.Inject(talosim.Fault{Kind: talosim.SlowBoot, Delay: time.Hour})
	boot := m.State().BootID
	m.PowerCycle()
	eventually(t, "a new boot", func() error {
		if id := m.State().BootID; id == boot || id == "" {
			return errors.New("not yet")
		}
		return nil
	})
	if _, err := dialTalos(m.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial while booting: %v, want it refused", err)
	}
	m.Clear("")
	m.PowerCycle()
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestCorruptMemberIsReplacedAfterItIsRemoved(t *testing.T) {
	sim := newSim(t, "")
	machines := addMachines(t, sim, 3)
	te := form(t, machines, 3)
	c := te.dial(t, machines[0].Address())
	machines[2].Inject(talosim.Fault{Kind: talosim.CorruptEtcd})
	broken := te.dial(t, machines[2].Address())
	eventually(t, "etcd fails", func() error {
		r, err := broken.ServiceInfo(short(t), "etcd")
		if err != nil {
			return err
		}
		if s := r[0].Service.State; s != "Failed" {
			return fmt.Errorf("etcd is %s", s)
		}
		return nil
	})
	waitStage(t, broken, runtime.MachineStageRunning, false)
	var id uint64
	fmt.Sscanf(machines[2].State().EtcdMember, "%x", &id)
	if err := c.EtcdRemoveMemberByID(short(t), &machineapi.EtcdRemoveMemberByIDRequest{MemberId: id}); err != nil {
		t.Fatal(err)
	}
	machines[2].Clear("")
	data := machines[2].Config()
	if err := broken.Reset(short(t), false, true); err != nil {
		t.Fatal(err)
	}
	applyMaintenance(t, machines[2], data)
	waitStage(t, broken, runtime.MachineStageRunning, true)
}

func TestWrongClockIsNotSynced(t *testing.T) {
	m, _, c, _ := single(t)
	m.Inject(talosim.Fault{Kind: talosim.WrongClock, Delay: -time.Hour})
	waitStage(t, c, runtime.MachineStageRunning, false)
	m.Clear("")
	waitStage(t, c, runtime.MachineStageRunning, true)
}

func TestControlAPIBreaksAndMendsMachines(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	server := httptest.NewServer(sim.Control())
	defer server.Close()
	do := func(method, path, body string, want int) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		out, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want {
			t.Errorf("%s %s: %s %s, want %d", method, path, resp.Status, out, want)
		}
		return string(out)
	}
	at := "/machines/" + m.Address().String()
	do("POST", at+"/faults", `{"kind":"network-refuse"}`, 200)
	if _, err := dialTalos(m.Address()); err == nil {
		t.Error("the network works after the fault")
	}
	do("POST", at+"/faults", `{"kind":"earthquake"}`, 400)
	do("POST", at+"/faults", `{"kind":"slow-boot","color":"red"}`, 400)
	do("DELETE", at+"/faults", "", 200)
	waitStage(t, insecure(t, m.Address()), runtime.MachineStageMaintenance, true)
	if out := do("GET", "/machines", "", 200); !strings.Contains(out, `"stage":"maintenance"`) {
		t.Errorf("list: %s", out)
	}
	do("POST", at+"/power/off", "", 200)
	eventually(t, "off", func() error {
		if s := m.State().Stage; s != "off" {
			return errors.New(s)
		}
		return nil
	})
	do("POST", at+"/power/on", "", 200)
	waitStage(t, insecure(t, m.Address()), runtime.MachineStageMaintenance, true)
	if out := do("POST", "/machines", `{"count":2}`, 201); strings.Count(out, `"address"`) != 2 {
		t.Errorf("added: %s", out)
	}
	do("POST", "/machines", fmt.Sprintf(`{"address":%q}`, m.Address()), 409)
	do("POST", "/machines", `{"address":"10.0.0.1"}`, 400)
	do("DELETE", at, "", 204)
	do("GET", at, "", 404)
}

func TestCloseEndsHungConnections(t *testing.T) {
	sim := newSim(t, "")
	m := addMachines(t, sim, 1)[0]
	waitStage(t, insecure(t, m.Address()), runtime.MachineStageMaintenance, true)
	m.Inject(talosim.Fault{Kind: talosim.NetworkHang})
	conn, err := dialTalos(m.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{22, 3, 1}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- sim.Close() }()
	select {
	case <-done:
	case <-time.After(deadline):
		t.Fatal("Close waits for a connection that hangs")
	}
}
