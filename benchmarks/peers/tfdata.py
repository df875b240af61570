"""tf.data: TFRecord files, and TensorFlow's decoder that decodes only the crop."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import tensorflow as tf

from peers.protocol import Job, counted, serve


def training(data: Any, size: int) -> Any:
    shape = tf.io.extract_jpeg_shape(data)
    whole = tf.zeros((1, 0, 4))
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        shape,
        whole,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
    image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
    return tf.image.random_flip_left_right(resized(image, size))


def validation(data: Any, size: int) -> Any:
    shape = tf.io.extract_jpeg_shape(data)
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.cast(tf.round(shorter * 0.875), tf.int32)
    window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
    return resized(tf.image.decode_and_crop_jpeg(data, window, channels=3), size)


def resized(image: Any, size: int) -> Any:
    # Note: resizing gives floats, which are converted to bytes again.
    return tf.cast(tf.image.resize(image, (size, size)), tf.uint8)


def prepare(job: Job) -> Callable[[], int]:
    stored = job.stored()
    files = [f"{job.place}/{number}.tfrecord" for number in range(job.cores)]
    for number, path in enumerate(files):
        with tf.io.TFRecordWriter(path) as writer:
            for image in stored[number :: job.cores]:
                writer.write(image.read_bytes())
    render = training if job.training else validation
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=job.cores)
    if job.training:
        dataset = dataset.shuffle(len(stored))
    dataset = dataset.map(lambda data: render(data, job.size), tf.data.AUTOTUNE)
    dataset = dataset.batch(job.batch, drop_remainder=job.training).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = job.cores
    options.deterministic = not job.training
    dataset = dataset.with_options(options)
    return lambda: sum(counted(batch, job) for batch in dataset)


if __name__ == "__main__":
    serve(prepare)
