package talosim

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

const chunk = 32 << 10

func sendData(out grpc.ServerStreamingServer[common.Data], data []byte) error {
	for len(data) > 0 {
		n := min(len(data), chunk)
		if err := out.Send(&common.Data{Bytes: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// Events implements the machine API: an empty message first, then past events as asked, then new ones.
func (*machineService) Events(in *machineapi.EventsRequest, out grpc.ServerStreamingServer[machineapi.Event]) error {
	s, err := secure(out.Context())
	if err != nil {
		return err
	}
	if err := out.Send(&machineapi.Event{Data: &anypb.Any{TypeUrl: "talos/runtime/google.protobuf.Empty"}, ActorId: in.GetWithActorId()}); err != nil {
		return err
	}
	past, next, _ := s.events.since(0)
	from := next
	first := next - len(past)
	switch {
	case in.GetTailId() != "":
		found := false
		for i, e := range past {
			if e.id == in.GetTailId() {
				from, found = first+i+1, true
			}
		}
		if !found {
			from = first
		}
	case in.GetTailSeconds() != 0:
		since := time.Now().Add(-time.Duration(in.GetTailSeconds()) * time.Second)
		for i := len(past) - 1; i >= 0 && past[i].at.After(since); i-- {
			from = first + i
		}
	case in.GetTailEvents() < 0:
		from = first
	case in.GetTailEvents() > 0:
		from = max(first, next-int(in.GetTailEvents()))
	}
	return s.events.follow(out.Context(), from, func(e event) error {
		if in.GetWithActorId() != "" && in.GetWithActorId() != e.actor {
			return nil
		}
		return out.Send(&machineapi.Event{Data: e.data, Id: e.id, ActorId: e.actor})
	})
}

// Logs implements the machine API.
func (*machineService) Logs(in *machineapi.LogsRequest, out grpc.ServerStreamingServer[common.Data]) error {
	s, err := secure(out.Context())
	if err != nil {
		return err
	}
	if in.GetNamespace() != "" && in.GetNamespace() != constants.SystemContainerdNamespace {
		return status.Errorf(codes.NotFound, "log \"%s-%s\" was not registered", in.GetNamespace(), in.GetId())
	}
	if !s.hasService(in.GetId()) && !s.logs.has(in.GetId()) {
		return status.Errorf(codes.NotFound, "log %q was not registered", in.GetId())
	}
	return s.sendLog(out, in.GetId(), in.GetTailLines(), in.GetFollow())
}

// sendLog streams the last lines of a log (all for a negative number, as in Talos), and new ones when asked.
func (s *session) sendLog(out grpc.ServerStreamingServer[common.Data], id string, tail int32, follow bool) error {
	n := 0
	_, end, _ := s.logs.since(id, 0)
	if tail >= 0 {
		n = max(0, end-int(tail))
	}
	for {
		changed := s.logs.notify.wait()
		lines, next, closed := s.logs.since(id, n)
		n = next
		if len(lines) > 0 {
			if err := sendData(out, []byte(strings.Join(lines, "\n")+"\n")); err != nil {
				return err
			}
		}
		if closed || !follow {
			return nil
		}
		select {
		case <-changed:
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// Dmesg implements the machine API.
func (*machineService) Dmesg(in *machineapi.DmesgRequest, out grpc.ServerStreamingServer[common.Data]) error {
	s, err := secure(out.Context())
	if err != nil {
		return err
	}
	at := s.boot.UTC().Format(time.RFC3339Nano)
	boot := fmt.Sprintf("kern:  notice: [%s]: Linux version %s (simulated)\nkern:    info: [%s]: DMI: %s %s\n",
		at, constants.DefaultKernelVersion, at, manufacturer, productName)
	if !in.GetTail() {
		if err := sendData(out, []byte(boot)); err != nil {
			return err
		}
	}
	tail := int32(-1)
	if in.GetTail() {
		tail = 0
	}
	return s.sendLog(out, "machined", tail, in.GetFollow())
}

// Read implements the machine API: a few files are there, the boot id above all.
func (*machineService) Read(in *machineapi.ReadRequest, out grpc.ServerStreamingServer[common.Data]) error {
	s, err := secure(out.Context())
	if err != nil {
		return err
	}
	var content string
	switch in.GetPath() {
	case "/proc/sys/kernel/random/boot_id":
		content = s.bootID + "\n"
	case "/proc/uptime":
		up := time.Since(s.since).Seconds()
		content = fmt.Sprintf("%.2f %.2f\n", up, up)
	case "/etc/hostname", "/proc/sys/kernel/hostname":
		content = s.nodename() + "\n"
	case "/etc/os-release":
		s.m.mu.Lock()
		content = fmt.Sprintf("NAME=\"Talos\"\nID=talos\nVERSION_ID=%s\nPRETTY_NAME=\"Talos (%[1]s)\"\n", s.m.versionLocked())
		s.m.mu.Unlock()
	case "/system/state/config.yaml":
		content = string(s.m.Config())
	default:
		return status.Errorf(codes.Unknown, "stat %s: no such file or directory", in.GetPath())
	}
	return sendData(out, []byte(content))
}

// Kubeconfig implements the machine API: a tar of one file, compressed.
func (*machineService) Kubeconfig(_ *emptypb.Empty, out grpc.ServerStreamingServer[common.Data]) error {
	s, err := etcdCall(out.Context(), "kubeconfig")
	if err != nil {
		return err
	}
	cfg, _ := s.config()
	data, err := adminKubeconfig(cfg, s.m.now())
	if err != nil {
		return fmt.Errorf("failed to generate kubeconfig: %w", err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	if err := errors.Join(
		t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "kubeconfig", Size: int64(len(data)), ModTime: s.m.now(), Mode: 0o600}),
		write(t, data), t.Close(), z.Close(),
	); err != nil {
		return err
	}
	return sendData(out, b.Bytes())
}

func write(t *tar.Writer, data []byte) error {
	_, err := t.Write(data)
	return err
}

// List implements the machine API: a simulated machine has no files to list.
func (*machineService) List(in *machineapi.ListRequest, out grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	if _, err := secure(out.Context()); err != nil {
		return err
	}
	return status.Errorf(codes.Unknown, "lstat %s: no such file or directory", in.GetRoot())
}
