package kubeapi

import (
	"io"
	"net/http"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"
)

const maxBody = 3 << 20

// newDecoder reads the protobuf form of the resources that the server has.
func newDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme, rbacv1.AddToScheme,
		storagev1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return protobuf.NewSerializer(scheme, scheme), nil
}

// decode reads an object from a request, in whatever form clients send it.
func (s *Server) decode(r *http.Request) (Object, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fail(http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, "limit is %d", maxBody)
	}
	invalid := func(err error) error {
		return fail(http.StatusBadRequest, metav1.StatusReasonBadRequest, "the object provided is unrecognized: %s", err)
	}
	switch contentType := r.Header.Get("Content-Type"); {
	case strings.Contains(contentType, "protobuf"):
		typed, gvk, err := s.protobuf.Decode(body, nil, nil)
		if err != nil {
			return nil, invalid(err)
		}
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
		if err != nil {
			return nil, invalid(err)
		}
		o := &unstructured.Unstructured{Object: m}
		o.SetGroupVersionKind(*gvk)
		return o, nil
	case strings.Contains(contentType, "yaml"):
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil, invalid(err)
		}
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(body); err != nil {
		return nil, invalid(err)
	}
	return o, nil
}
