# The public names; lazy_loader reads this file at run time.
from .drawn_faces import synthetic_punks as synthetic_punks
from .fashion import FASHION_CLASSES as FASHION_CLASSES
from .fashion import ImageData as ImageData
from .fashion import batches as batches
from .fashion import fashion_mnist as fashion_mnist
from .fashion import fashion_sample as fashion_sample
from .fashion import load as load
from .fashion import locate as locate
from .fashion import read_idx as read_idx
from .fashion import to_float as to_float
from .linear import LinearProblem as LinearProblem
from .linear import uniform_problem as uniform_problem
from .punks import FaceData as FaceData
from .punks import cryptopunks as cryptopunks
