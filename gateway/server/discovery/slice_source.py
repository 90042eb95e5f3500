"""The pods of a Service in Kubernetes as a source of replicas. Units: seconds.

It is imported where it is configured: it needs an HTTP client.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.config.settings import DiscoverSettings, Replicas
from gateway.server.discovery.endpoint_slices import EndpointSlice, Pod, endpoint_rows
from gateway.server.discovery.failure import SourceFailed
from gateway.server.discovery.kubernetes import Api, Collection, Wanted

_SETTLED_S: Final = 0.1  # an update of a Service is several events
_AGAIN_S: Final = 5.0  # after a change that could not be put in force
_SERVICE: Final = "kubernetes.io/service-name"  # label of the EndpointSlices of a Service


class SliceSource:
    """The pods of a Service in Kubernetes, by a watch of its EndpointSlices.

    Labels of pods are read with `pods` only: EndpointSlices have the labels of the Service.
    """

    def __init__(self, discover: DiscoverSettings, api: Api) -> None:
        self._discover = discover
        service, _, namespace = (discover.endpointslices or "").partition(".")
        group, within = "/apis/discovery.k8s.io/v1", namespace or None
        slices = Wanted(group, "endpointslices", within, f"{_SERVICE}={service}", EndpointSlice)
        self._slices = Collection(api, slices)
        self._pods: Collection[Pod] | None = None
        if discover.pods is not None:
            self._pods = Collection(api, Wanted("/api/v1", "pods", within, discover.pods, Pod, only_metadata=True))
        self._answer: Replicas = ()

    async def ask(self) -> Replicas:
        """Return the replicas by the last change; the first call asks the API server."""
        for each in (self._slices, self._pods):
            if each is not None and not each.is_listed:
                await each.list()
            if each is not None and each.fault is not None:
                raise SourceFailed(each.fault)
        if not self._slices.objects:
            raise SourceFailed(f"the Service {self._discover.endpointslices} has no EndpointSlices; check its name")
        pods = None if self._pods is None else self._pods.objects
        try:
            self._answer = endpoint_rows(self._discover, self._slices.objects.values(), pods, self._answer)
        except ValueError:
            raise SourceFailed("an EndpointSlice has an invalid address or port") from None
        return self._answer

    async def follow(self, use: Callable[[], Awaitable[bool]], rand: Callable[[], float]) -> None:
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for each in (self._slices, self._pods):
                if each is not None:
                    tasks.create_task(each.follow(changed.set, rand))
            while True:
                await changed.wait()
                await asyncio.sleep(_SETTLED_S)
                changed.clear()
                if not await use():
                    await asyncio.sleep(_AGAIN_S)
                    changed.set()
