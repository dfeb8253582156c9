package talosim

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
)

// Control is the HTTP API that tests and people use to look at the machines and to break them:
//
//	GET    /machines                                  {"machines": [State…]}
//	POST   /machines                                  a MachineSpec, or {"count": N} for N at free addresses
//	GET    /machines/{address}                        State
//	DELETE /machines/{address}                        the machine and its disk are gone
//	POST   /machines/{address}/faults                 a Fault
//	DELETE /machines/{address}/faults[/{kind}]        clears one, or all
//	POST   /machines/{address}/power/{on|off|cycle}   the button and the plug
//
// Errors are {"error": "…"}. It knows no users: serve it on loopback only.
func (s *Sim) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /machines", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, machineList{s.states(s.Machines())})
	})
	mux.HandleFunc("POST /machines", s.controlAdd)
	machine := func(pattern string, f func(w http.ResponseWriter, r *http.Request, m *Machine) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			addr, err := netip.ParseAddr(r.PathValue("address"))
			m := s.Machine(addr)
			if err != nil || m == nil {
				answer(w, http.StatusNotFound, controlError{"there is no machine at " + r.PathValue("address")})
				return
			}
			if err := f(w, r, m); err != nil {
				answer(w, http.StatusBadRequest, controlError{err.Error()})
			}
		})
	}
	state := func(w http.ResponseWriter, m *Machine) error {
		answer(w, http.StatusOK, m.State())
		return nil
	}
	machine("GET /machines/{address}", func(w http.ResponseWriter, _ *http.Request, m *Machine) error { return state(w, m) })
	machine("DELETE /machines/{address}", func(w http.ResponseWriter, _ *http.Request, m *Machine) error {
		if err := s.Remove(m.addr); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	machine("POST /machines/{address}/faults", func(w http.ResponseWriter, r *http.Request, m *Machine) error {
		var f Fault
		if err := decodeStrict(r, &f); err != nil {
			return err
		}
		if err := m.Inject(f); err != nil {
			return err
		}
		return state(w, m)
	})
	unbreak := func(w http.ResponseWriter, r *http.Request, m *Machine) error {
		if err := m.Clear(FaultKind(r.PathValue("kind"))); err != nil {
			return err
		}
		return state(w, m)
	}
	machine("DELETE /machines/{address}/faults", unbreak)
	machine("DELETE /machines/{address}/faults/{kind}", unbreak)
	machine("POST /machines/{address}/power/{button}", func(w http.ResponseWriter, r *http.Request, m *Machine) error {
		switch r.PathValue("button") {
		case "on":
			m.PowerOn()
		case "off":
			m.PowerOff()
		case "cycle":
			m.PowerCycle()
		default:
			return errors.New("the buttons are on, off and cycle")
		}
		return state(w, m)
	})
	return mux
}

type machineList struct {
	Machines []State `json:"machines"`
}

type controlError struct {
	Error string `json:"error"`
}

func (s *Sim) states(machines []*Machine) []State {
	list := make([]State, 0, len(machines))
	for _, m := range machines {
		list = append(list, m.State())
	}
	return list
}

// controlAdd makes one machine as specified, or several at free addresses.
func (s *Sim) controlAdd(w http.ResponseWriter, r *http.Request) {
	var in struct {
		MachineSpec
		Count int `json:"count"`
	}
	err := decodeStrict(r, &in)
	specs := []MachineSpec{in.MachineSpec}
	if err == nil && (in.Count > 0 || !in.Address.IsValid()) {
		specs = nil
		var addrs []netip.Addr
		addrs, err = FreeAddresses(max(in.Count, 1))
		for _, a := range addrs {
			spec := in.MachineSpec
			spec.Address, spec.UUID = a, ""
			specs = append(specs, spec)
		}
	}
	var added []*Machine
	for _, spec := range specs {
		if err != nil {
			break
		}
		var m *Machine
		if m, err = s.Add(spec); err == nil {
			added = append(added, m)
		}
	}
	switch {
	case errors.Is(err, ErrExists):
		answer(w, http.StatusConflict, controlError{err.Error()})
	case err != nil:
		answer(w, http.StatusBadRequest, controlError{err.Error()})
	default:
		answer(w, http.StatusCreated, machineList{s.states(added)})
	}
}

func decodeStrict(r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 64<<10))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
