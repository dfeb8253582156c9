package kubeapi_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"freehold.dev/freehold/internal/talosim/kubeapi"
)

type api struct {
	store     *kubeapi.Store
	clientset *kubernetes.Clientset
	user      atomic.Pointer[kubeapi.User]
	down      atomic.Bool
	url       string
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{store: kubeapi.NewStore(nil, nil)}
	a.user.Store(&kubeapi.User{Name: "admin", Groups: []string{"system:masters"}})
	done := make(chan struct{})
	handler, err := kubeapi.NewServer(kubeapi.Config{
		Store: a.store, Version: "v1.35.0", Done: done,
		Authenticate: func(*http.Request) (kubeapi.User, bool) {
			u := a.user.Load()
			return *u, u.Name != ""
		},
		Available: func() error {
			if a.down.Load() {
				return errors.New("no quorum")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		close(done)
		server.Close()
	})
	a.url = server.URL
	a.clientset, err = kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestObjectsAreCreatedChangedAndDeleted(t *testing.T) {
	a := newAPI(t)
	cms := a.clientset.CoreV1().ConfigMaps("default")
	cm, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{})
	if err != nil || cm.UID == "" || cm.ResourceVersion == "" || cm.CreationTimestamp.IsZero() {
		t.Fatalf("created %+v, %v", cm, err)
	}
	if _, err := cms.Create(t.Context(), cm, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	stale := cm.DeepCopy()
	cm.Data["k"] = "2"
	if cm, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil || cm.Data["k"] != "2" {
		t.Fatalf("updated %+v, %v", cm, err)
	}
	if _, err := cms.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v", err)
	}
	for typ, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"data":{"m":"x"}}`,
		types.StrategicMergePatchType: `{"data":{"s":"x"}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/data/j","value":"x"}]`,
	} {
		if cm, err = cms.Patch(t.Context(), "a", typ, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", typ, err)
		}
	}
	if len(cm.Data) != 4 {
		t.Errorf("after the patches: %v", cm.Data)
	}
	if err := cms.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cms.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after delete: %v", err)
	}
	if _, err := a.clientset.CoreV1().ConfigMaps("nowhere").Create(t.Context(), stale, metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that is not there: %v", err)
	}
}

func TestStatusAndSpecAreWrittenApart(t *testing.T) {
	a := newAPI(t)
	o := kubeapi.NewObject(kubeapi.Nodes, "", "n1")
	kubeapi.SetCondition(o, "Ready", "True", "r", "m", time.Now())
	a.store.Put(kubeapi.Nodes, o)
	nodes := a.clientset.CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Spec.Unschedulable = true
	n.Status.Conditions = nil
	if n, err = nodes.Update(t.Context(), n, metav1.UpdateOptions{}); err != nil || len(n.Status.Conditions) != 1 || !n.Spec.Unschedulable {
		t.Errorf("update: %+v, %v", n, err)
	}
	n.Spec.Unschedulable = false
	n.Status.Phase = corev1.NodeRunning
	if n, err = nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil || n.Status.Phase != corev1.NodeRunning || !n.Spec.Unschedulable {
		t.Errorf("update of the status: %+v, %v", n, err)
	}
}

func TestWatchTellsEveryChangeOnceInOrder(t *testing.T) {
	a := newAPI(t)
	cms := a.clientset.CoreV1().ConfigMaps("default")
	list, err := cms.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "app=x"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	create := func(name string, labels map[string]string) *corev1.ConfigMap {
		cm, err := cms.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return cm
	}
	create("other", nil)
	cm := create("mine", map[string]string{"app": "x"})
	cm.Data = map[string]string{"k": "v"}
	if cm, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	cm.Labels = nil
	if _, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		select {
		case ev := <-w.ResultChan():
			if ev.Type != want || ev.Object.(*corev1.ConfigMap).Name != "mine" {
				t.Errorf("event %s %v, want %s of mine", ev.Type, ev.Object, want)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("no %s", want)
		}
	}
	if _, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"}); err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from the beginning: %v", err)
	}
}

func TestInformersSync(t *testing.T) {
	a := newAPI(t)
	factory := informers.NewSharedInformerFactory(a.clientset, 0)
	informer := factory.Core().V1().Namespaces()
	lister := informer.Lister()
	informer.Informer()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	factory.Start(ctx.Done())
	for typ, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%v did not sync", typ)
		}
	}
	if _, err := lister.Get("kube-system"); err != nil {
		t.Error(err)
	}
	cancel()
	factory.Shutdown()
}

func TestWithoutStorageNothingIsReadyOrAnswered(t *testing.T) {
	a := newAPI(t)
	a.down.Store(true)
	body, err := a.clientset.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
	if err == nil || !strings.Contains(string(body), "[-]etcd failed") {
		t.Errorf("readyz: %s, %v", body, err)
	}
	if _, err := a.clientset.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("list: %v", err)
	}
}

func TestOnlyMastersMayReadObjects(t *testing.T) {
	a := newAPI(t)
	a.user.Store(&kubeapi.User{Name: "somebody"})
	if _, err := a.clientset.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list: %v, want Forbidden", err)
	}
	if _, err := a.clientset.Discovery().ServerVersion(); err != nil {
		t.Errorf("version: %v", err)
	}
	a.user.Store(&kubeapi.User{})
	if _, err := a.clientset.Discovery().ServerVersion(); !apierrors.IsUnauthorized(err) {
		t.Errorf("version for nobody: %v, want Unauthorized", err)
	}
}

func TestSnapshotBringsTheStoreBack(t *testing.T) {
	a := newAPI(t)
	o := kubeapi.NewObject(kubeapi.Nodes, "", "n1")
	o.Object["status"] = map[string]any{"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": int64(10250)}}}
	a.store.Put(kubeapi.Nodes, o)
	again := kubeapi.NewStore(a.store.Snapshot(), nil)
	got, ok := again.Get(kubeapi.Nodes, "", "n1")
	if !ok || got.GetUID() != o.GetUID() || again.Revision() != a.store.Revision() {
		t.Errorf("got %v at %d, want %v at %d", got, again.Revision(), o, a.store.Revision())
	}
	if len(again.List(kubeapi.Namespaces, "")) != 4 {
		t.Error("namespaces are lost")
	}
	if kubeapi.Set(got, int64(10250), "status", "daemonEndpoints", "kubeletEndpoint", "Port") {
		t.Error("a number changed its type")
	}
}
