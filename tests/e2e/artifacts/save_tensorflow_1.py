"""Save a model as TensorFlow 1 does: `save_tensorflow_1.py FOLDER`.

What lies in tensorflow_1_15 was saved by it, and captured afterwards, in an environment of Python 3.7 with
`tensorflow==1.15.5 protobuf<3.21 numpy<1.19 setuptools<60`, which few machines can have today.
"""

# The framework is installed only where this runs.
# mypy: ignore-errors

import sys

import tensorflow as tf


def main():
    with tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3], name="x")
        weights = tf.get_variable("weights", [3, 1], initializer=tf.ones_initializer())
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, sys.argv[1], {"x": x}, {"y": tf.matmul(x, weights)})


main()
