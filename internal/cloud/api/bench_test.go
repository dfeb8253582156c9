package api_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// BenchmarkWrites serves creations without a network: what a request costs beside HTTP itself.
func BenchmarkWrites(b *testing.B) {
	for name, c := range map[string]struct {
		path string
		body func(n int64) string
	}{
		"machine": {"/api/v1/machines", func(n int64) string {
			return fmt.Sprintf(`{"metadata":{"labels":{"rack":"4"}},"spec":{"managementAddress":"10.%d.%d.%d"}}`, n>>16&255, n>>8&255, n&255)
		}},
		"tenant": {"/api/v1/tenants", func(n int64) string {
			return fmt.Sprintf(`{"metadata":{"name":"t%d"},"spec":{"kubernetesVersion":"1.35.0","talosVersion":"1.12.6","controlPlaneEndpoint":"https://t%d.example.com:6443","podNetwork":["10.244.0.0/16"],"serviceNetwork":["10.96.0.0/12"]}}`, n, n)
		}},
	} {
		b.Run(name, func(b *testing.B) {
			p := newPlane(b)
			var n atomic.Int64
			b.SetParallelism(32)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := httptest.NewRequest(http.MethodPost, c.path, bytes.NewBufferString(c.body(n.Add(1))))
					r.Header.Set("Authorization", "Bearer "+p.tokens["edit"])
					w := httptest.NewRecorder()
					p.handler.ServeHTTP(w, r)
					if w.Code != http.StatusCreated {
						b.Errorf("%d: %s", w.Code, w.Body)
						return
					}
				}
			})
		})
	}
}
