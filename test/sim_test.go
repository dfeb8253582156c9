package test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// simulator is a running talosim: machines that outlive the plane.
type simulator struct {
	*process
	control   string
	addresses []string
}

// simMachine is what a simulated machine knows of itself.
type simMachine struct {
	Address string `json:"address"`
	UUID    string `json:"uuid"`
	Stage   string `json:"stage"`
	BootID  string `json:"bootId"`
	// Endpoint of the cluster in the machine's configuration.
	Endpoint string `json:"endpoint"`
	Applies  int    `json:"applies"`
	Resets   int    `json:"resets"`
}

// startSim starts n machines that do everything in milliseconds.
func startSim(t *testing.T, n int, args ...string) *simulator {
	t.Helper()
	args = append([]string{"--machines", strconv.Itoa(n), "--timing", "fast", "--control", "127.0.0.1:0"}, args...)
	s := &simulator{process: start(t, nil, "talosim", args...)}
	var ready struct {
		Control  string       `json:"control"`
		Machines []simMachine `json:"machines"`
	}
	if err := json.Unmarshal([]byte(s.line), &ready); err != nil {
		t.Fatalf("talosim's ready line: %v: %s", err, s.line)
	}
	s.control = ready.Control
	for _, m := range ready.Machines {
		s.addresses = append(s.addresses, m.Address)
	}
	return s
}

func (s *simulator) machines(t *testing.T) []simMachine {
	t.Helper()
	var list struct{ Machines []simMachine }
	s.ask(t, "GET", "/machines", "", &list)
	return list.Machines
}

// fault injects a fault into a machine; the empty one heals it.
func (s *simulator) fault(t *testing.T, address, fault string) {
	t.Helper()
	if fault == "" {
		s.ask(t, "DELETE", "/machines/"+address+"/faults", "", nil)
		return
	}
	s.ask(t, "POST", "/machines/"+address+"/faults", fault, nil)
}

func (s *simulator) ask(t *testing.T, method, path, body string, out any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.control+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		t.Fatalf("talosim %s %s: %s", method, path, res.Status)
	}
	if out != nil {
		if err := json.NewDecoder(res.Body).Decode(out); err != nil {
			t.Fatal(err)
		}
	}
}

// register makes machines known to the plane.
func (p *plane) register(t *testing.T, addresses []string) {
	t.Helper()
	for _, a := range addresses {
		p.want(http.StatusCreated, "POST", "/api/v1/machines", `{"spec":{"managementAddress":"`+a+`:50000"}}`)
	}
}
