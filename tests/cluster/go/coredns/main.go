// CoreDNS with the plugins that a Kubernetes cluster's Corefile names, and no others: the stock program
// links the SDKs of several clouds, which takes many minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order in which a query passes through the plugins, as in CoreDNS' own plugin.cfg.
	dnsserver.Directives = []string{
		"reload", "errors", "health", "ready", "prometheus", "cache", "loadbalance", "kubernetes", "loop", "forward",
	}
	coremain.Run()
}
