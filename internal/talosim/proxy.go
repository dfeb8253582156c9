package talosim

import (
	"context"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// unary authenticates a call and hands it to the machines it is for. Several nodes' answers become one, each marked
// with its node, failures included.
func (s *session) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	roles, err := s.callerRoles(ctx)
	if err != nil {
		return nil, err
	}
	nodes, many, err := s.route(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	ask := func(t *session) (any, error) {
		c := call{s: t, roles: roles}
		if err := authorize(c, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(withCall(ctx, c), req)
	}
	switch {
	case len(nodes) == 0:
		return ask(s)
	case !many:
		t, err := s.peerSession(nodes[0])
		if err != nil {
			return nil, err
		}
		return ask(t)
	}
	out, err := newReply(info.FullMethod)
	if err != nil {
		return nil, err
	}
	replies := make([]proto.Message, len(nodes))
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() {
			t, err := s.peerSession(node)
			var reply any
			if err == nil {
				reply, err = ask(t)
			}
			if errs[i] = err; err == nil {
				replies[i], _ = reply.(proto.Message)
			}
		})
	}
	wg.Wait()
	for i, node := range nodes {
		appendReply(out, node, replies[i], errs[i])
	}
	return out, nil
}

// newReply makes an empty answer of a method.
func newReply(fullMethod string) (proto.Message, error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service).Append(protoreflect.Name(method)))
	if err != nil {
		return nil, err
	}
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Output().FullName())
	if err != nil {
		return nil, err
	}
	return t.New().Interface(), nil
}

func nodeMetadata(node string, err error) *common.Metadata {
	md := &common.Metadata{Hostname: node}
	if err != nil {
		md.Error, md.Status = err.Error(), status.Convert(err).Proto()
	}
	return md
}

func setMetadata(m protoreflect.Message, node string, err error) {
	if f := m.Descriptor().Fields().ByName("metadata"); f != nil {
		m.Set(f, protoreflect.ValueOfMessage(nodeMetadata(node, err).ProtoReflect()))
	}
}

// appendReply adds a node's answer, or its error, to the "messages" of the joint one.
func appendReply(out proto.Message, node string, reply proto.Message, err error) {
	f := out.ProtoReflect().Descriptor().Fields().ByName("messages")
	if f == nil {
		return
	}
	list := out.ProtoReflect().Mutable(f).List()
	if err != nil {
		e := list.NewElement()
		setMetadata(e.Message(), node, err)
		list.Append(e)
		return
	}
	from := reply.ProtoReflect().Get(f).List()
	for i := range from.Len() {
		setMetadata(from.Get(i).Message(), node, nil)
		list.Append(from.Get(i))
	}
}

// stream does for streams what unary does for calls.
func (s *session) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	roles, err := s.callerRoles(ss.Context())
	if err != nil {
		return err
	}
	nodes, many, err := s.route(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	// A stream ends with the API of the machine that was called.
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	ask := func(t *session, stream *nodeStream) error {
		c := call{s: t, roles: roles}
		if err := authorize(c, info.FullMethod); err != nil {
			return err
		}
		tctx, tcancel := context.WithCancel(ctx)
		defer tcancel()
		defer context.AfterFunc(t.streams, tcancel)()
		stream.ctx = withCall(tctx, c)
		return handler(srv, stream)
	}
	switch {
	case len(nodes) == 0:
		return ask(s, &nodeStream{ServerStream: ss})
	case !many:
		t, err := s.peerSession(nodes[0])
		if err != nil {
			return err
		}
		return ask(t, &nodeStream{ServerStream: ss})
	}
	shared := &sharedStream{}
	var wg sync.WaitGroup
	for _, node := range nodes {
		wg.Go(func() {
			t, err := s.peerSession(node)
			if err == nil {
				err = ask(t, &nodeStream{ServerStream: ss, shared: shared, node: node})
			}
			if err == nil || ctx.Err() != nil {
				return
			}
			if m, merr := newReply(info.FullMethod); merr == nil {
				setMetadata(m.ProtoReflect(), node, err)
				shared.send.Lock()
				defer shared.send.Unlock()
				_ = ss.SendMsg(m)
			}
		})
	}
	wg.Wait()
	return nil
}

// sharedStream is what the nodes of a joint stream share.
type sharedStream struct {
	send    sync.Mutex
	recv    sync.Mutex
	request proto.Message
	err     error
}

// nodeStream is one node's part of a stream.
type nodeStream struct {
	grpc.ServerStream
	ctx    context.Context
	shared *sharedStream
	node   string
}

func (n *nodeStream) Context() context.Context { return n.ctx }

func (n *nodeStream) SendMsg(m any) error {
	if n.shared == nil {
		return n.ServerStream.SendMsg(m)
	}
	if pm, ok := m.(proto.Message); ok {
		pm = proto.Clone(pm)
		setMetadata(pm.ProtoReflect(), n.node, nil)
		m = pm
	}
	n.shared.send.Lock()
	defer n.shared.send.Unlock()
	return n.ServerStream.SendMsg(m)
}

func (n *nodeStream) RecvMsg(m any) error {
	if n.shared == nil {
		return n.ServerStream.RecvMsg(m)
	}
	pm, ok := m.(proto.Message)
	if !ok {
		return n.ServerStream.RecvMsg(m)
	}
	n.shared.recv.Lock()
	defer n.shared.recv.Unlock()
	if n.shared.request == nil && n.shared.err == nil {
		if n.shared.err = n.ServerStream.RecvMsg(m); n.shared.err == nil {
			n.shared.request = proto.Clone(pm)
		}
		return n.shared.err
	}
	if n.shared.err != nil {
		return n.shared.err
	}
	proto.Merge(pm, n.shared.request)
	return nil
}
