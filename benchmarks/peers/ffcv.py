"""FFCV: its own file of JPEGs, decoder of random crops, compiled pipeline."""

from __future__ import annotations

from collections.abc import Callable

from ffcv.fields import IntField, RGBImageField
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor
from ffcv.writer import DatasetWriter
from torchvision.datasets import ImageFolder

from peers.protocol import Job, counted, serve


def prepare(job: Job) -> Callable[[], int]:
    # Note: it takes pixels and encodes them itself, so the stored bytes are not the same.
    # Written from its documentation; it did not build where it was last measured.
    path = f"{job.place}/images.beton"
    fields = {
        "image": RGBImageField(write_mode="jpg", jpeg_quality=90),
        "label": IntField(),
    }
    DatasetWriter(path, fields, num_workers=job.cores).from_indexed_dataset(ImageFolder(job.files))
    square = (job.size, job.size)
    if job.training:
        steps = [RandomResizedCropRGBImageDecoder(square), RandomHorizontalFlip(), ToTensor()]
    else:
        steps = [CenterCropRGBImageDecoder(square, ratio=0.875), ToTensor()]
    loader = Loader(
        path,
        batch_size=job.batch,
        num_workers=job.cores,
        order=OrderOption.RANDOM if job.training else OrderOption.SEQUENTIAL,
        os_cache=True,
        drop_last=job.training,
        pipelines={"image": steps, "label": None},
    )
    return lambda: sum(counted(images, job) for (images,) in loader)


if __name__ == "__main__":
    serve(prepare)
