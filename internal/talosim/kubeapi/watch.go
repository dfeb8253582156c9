package kubeapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watch streams changes after the asked revision; without one, or when initial events are asked for, after an ADDED
// for every object that is there.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, c selection) error {
	q := r.URL.Query()
	initial := q.Get("sendInitialEvents") == "true"
	var rev uint64
	var existing []Object
	if v := q.Get("resourceVersion"); initial || v == "" || v == "0" {
		existing, rev = s.Store.listAt(c.resource, c.namespace)
	} else {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid resource version %q", v)
		}
		rev = n
	}
	if _, _, ok := s.Store.since(rev); !ok {
		return fail(http.StatusGone, metav1.StatusReasonExpired, "too old resource version: %d", rev)
	}
	var end <-chan time.Time
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil && seconds > 0 {
		t := time.NewTimer(time.Duration(seconds) * time.Second)
		defer t.Stop()
		end = t.C
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	out := &eventWriter{w: w, table: asTable(r), resource: c.resource, known: map[string]bool{}}
	for _, o := range existing {
		if c.matches(o) {
			out.send("ADDED", o)
		}
	}
	if initial {
		out.bookmark(rev)
	}
	out.flush()
	for {
		changes, more, ok := s.Store.since(rev)
		if !ok {
			out.encode("ERROR", errorStatus(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
			out.flush()
			return nil
		}
		for _, ch := range changes {
			rev = ch.rev
			if ch.resource == c.resource {
				out.change(ch, c)
			}
		}
		out.flush()
		select {
		case <-more:
		case <-end:
			return nil
		case <-r.Context().Done():
			return nil
		case <-s.Done:
			return nil
		}
	}
}

type eventWriter struct {
	w        http.ResponseWriter
	table    bool
	headed   bool
	resource *Resource
	known    map[string]bool // objects that this watcher has seen, so that leaving the selection can be told
}

func (e *eventWriter) change(ch change, c selection) {
	key := objectKey(ch.object.GetNamespace(), ch.object.GetName())
	typ := ch.typ
	if typ != "DELETED" && !c.matches(ch.object) {
		if !e.known[key] {
			return
		}
		typ = "DELETED"
	} else if typ == "DELETED" && !c.matches(ch.object) {
		return
	}
	e.send(typ, ch.object)
}

func (e *eventWriter) send(typ string, o Object) {
	key := objectKey(o.GetNamespace(), o.GetName())
	if typ == "DELETED" {
		delete(e.known, key)
	} else {
		e.known[key] = true
	}
	if e.table {
		e.encode(typ, table(e.resource, []Object{o}, o.GetResourceVersion(), !e.headed))
		e.headed = true
		return
	}
	e.encode(typ, o)
}

func (e *eventWriter) bookmark(rev uint64) {
	o := NewObject(e.resource, "", "")
	o.SetResourceVersion(strconv.FormatUint(rev, 10))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	e.encode("BOOKMARK", o)
}

func (e *eventWriter) encode(typ string, o any) {
	data, err := json.Marshal(map[string]any{"type": typ, "object": o})
	if err != nil {
		return
	}
	_, _ = e.w.Write(append(data, '\n'))
}

func (e *eventWriter) flush() {
	if f, ok := e.w.(http.Flusher); ok {
		f.Flush()
	}
}
